// Partial results of 16-bit floats travel as such, or as f32 where a group or a wrapper says so.

#include "unit/public_interface/prelude.hpp"

namespace {

using dtrain::Accumulate;
using dtrain::GroupOptions;
using RingPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Ring>;
using RingGroup = dtrain::ProcessGroup<RingPolicy>;

constexpr int ranks = 4;

/// Rank 1 has 256s and the others ones. Added up in bf16, whose neighbours there are 2 apart, a one is lost unless 256
/// comes last; the exact 259 is rounded to 260.
std::vector<bfloat16> summands(const RingGroup& group) {
  return std::vector<bfloat16>(ranks, bfloat16(group.rank() == 1 ? 256.0F : 1.0F));
}

bool are_exact(std::span<const bfloat16> sums) {
  return std::all_of(sums.begin(), sums.end(), [](bfloat16 sum) { return static_cast<float>(sum) == 260; });
}

struct Bfloat16Model {
  std::vector<bfloat16> values = std::vector<bfloat16>(ranks);
  std::vector<bfloat16> gradients = std::vector<bfloat16>(ranks);
  std::vector<dtrain::Parameter> list{
      {"w", dtrain::tensor_view(values.data(), {ranks}), dtrain::tensor_view(gradients.data(), {ranks})}};
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
};

bool wrapper_is_exact(const RingGroup& group, Accumulate accumulate) {
  Bfloat16Model model;
  dtrain::DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum, .accumulate = accumulate}};
  ddp.backward([&](dtrain::Ready ready) {
    const std::vector<bfloat16> own = summands(group);
    std::copy(own.begin(), own.end(), model.gradients.begin());
    ready(0);
  });
  return are_exact(model.gradients);
}

bool group_is_exact(const RingGroup& group) {
  std::vector<bfloat16> sums = summands(group);
  group.all_reduce(sums, dtrain::ReduceOp::sum);
  return are_exact(sums);
}

std::vector<RankEnd> run(const std::vector<GroupOptions>& options, void (*body)(const RingGroup&)) {
  return support::run_groups<RingPolicy>(ranks, body, support::patience_with_ranks, {}, options);
}

}  // namespace

TEST_CASE("a wrapper that says so accumulates in f32, its group does not") {
  const std::vector<RankEnd> ends = run({}, [](const RingGroup& group) {
    CHECK_FALSE(group_is_exact(group));
    CHECK_FALSE(wrapper_is_exact(group, Accumulate::element));
    CHECK(wrapper_is_exact(group, Accumulate::f32));
  });
  CHECK(ends == std::vector<RankEnd>(ranks));
}

TEST_CASE("a group that says so accumulates in f32, and so do its parts and wrappers") {
  const std::vector<RankEnd> ends =
      run(std::vector<GroupOptions>(ranks, {Accumulate::f32}), [](const RingGroup& group) {
        CHECK(group_is_exact(group));
        CHECK(group_is_exact(group.split(0)));
        CHECK(wrapper_is_exact(group, Accumulate::element));
      });
  CHECK(ends == std::vector<RankEnd>(ranks));
}
