// Floats of 8 bits: they move, are stored, and their reductions are refused.

#include "unit/public_interface/prelude.hpp"

using dtrain::float8_e4m3;
using dtrain::float8_e5m2;

namespace {

using SharedMemory = dtrain::backend::SharedMemory;
using Flat = dtrain::Policy<dtrain::launch::PerProcess, SharedMemory>;
using Ring = dtrain::Policy<dtrain::launch::PerProcess, SharedMemory, dtrain::topology::Ring>;
constexpr int ranks = 3;

/// Every value, NaN and infinity among them; `shift` tells ranks apart.
template <class Float8>
std::vector<Float8> all_values(int shift = 0) {
  std::vector<Float8> values;
  for (int bits = 0; bits < 256; ++bits)
    values.push_back(Float8::from_bits(static_cast<std::uint8_t>(bits + shift)));
  return values;
}

template <class Float8>
bool same(std::span<const Float8> one, const std::vector<Float8>& other) {
  bool equal = one.size() == other.size();
  for (std::size_t i = 0; equal && i < other.size(); ++i)
    equal = one[i].bits == other[i].bits;
  return equal;
}

/// A parameter of 8 bits.
struct ShortGradient {
  std::array<float8_e4m3, 2> value{};
  std::array<float8_e4m3, 2> gradient{};
  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(value.data(), {2}), dtrain::tensor_view(gradient.data(), {2})}};
  }
};

/// A buffer of 8 bits.
struct ShortBuffer {
  explicit ShortBuffer(int rank) : scales(all_values<float8_e5m2>(rank)) {}
  std::array<float, 2> value{};
  std::array<float, 2> gradient{};
  std::vector<float8_e5m2> scales;
  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(value.data(), {2}), dtrain::tensor_view(gradient.data(), {2})}};
  }
  std::vector<dtrain::TensorView> buffers() { return {dtrain::tensor_view(scales.data(), {16, 16})}; }
};

template <class Policy>
void expect_moved_and_refused() {
  run_well<Policy>(ranks, [](const dtrain::ProcessGroup<Policy>& group) {
    const int rank = group.rank();
    auto values = all_values<float8_e4m3>(rank);
    std::vector<float8_e4m3> gathered(256 * ranks);
    std::vector<float8_e4m3> passed(256);
    group.all_gather(values, gathered);
    group.send_recv(values, (rank + 1) % ranks, passed, (rank + ranks - 1) % ranks);
    CHECK(same(std::span<const float8_e4m3>(gathered).subspan(512), all_values<float8_e4m3>(2)));
    CHECK(same<float8_e4m3>(passed, all_values<float8_e4m3>((rank + ranks - 1) % ranks)));
    const std::string sentence =
        " f8e4m3: floats of 8 bits can be moved, and not reduced, because they have too few digits for a sum or an "
        "average; reduce them as f16, bf16 or f32";
    const dtrain::BufferView view = dtrain::buffer_view(std::span(values));
    const dtrain::BufferView whole = dtrain::buffer_view(std::span(gathered));
    CHECK(sentence_of(Errc::unsupported, [&] { group.all_reduce(view, dtrain::ReduceOp::sum); }) ==
          "all_reduce of 256" + sentence);
    CHECK(sentence_of(Errc::unsupported, [&] { group.reduce_scatter(whole, view, dtrain::ReduceOp::max); }) ==
          "reduce_scatter of 256" + sentence);
    group.broadcast(values, 1);  // the refusals left nothing behind
    CHECK(same<float8_e4m3>(values, all_values<float8_e4m3>(1)));
  });
}

}  // namespace

TEST_CASE("floats of 8 bits move through shared memory, and a reduction of them is refused at the call") {
  expect_moved_and_refused<Flat>();
  expect_moved_and_refused<Ring>();
}

TEST_CASE("a model whose gradients have 8 bits is refused") {
  run_well<Flat>(1, [](const dtrain::ProcessGroup<Flat>& group) {
    ShortGradient model;
    CHECK(
        sentence_of(Errc::unsupported, [&] { dtrain::DistributedDataParallel(model, group); }) ==
        "parameter 0 'w' has a gradient of f8e4m3, which backend SharedMemory does not reduce; keep it in a type that "
        "the backend reduces, such as f32");
  });
  CHECK_FALSE(Ring::ChannelBackend::reduces(dtrain::DType::f8e5m2));
}

TEST_CASE("a model's buffers of 8 bits become rank 0's") {
  const auto ends = support::run_groups<Flat>(ranks, [](const dtrain::ProcessGroup<Flat>& group) {
    ShortBuffer model(group.rank());
    const dtrain::DistributedDataParallel ddp(model, group);
    CHECK(same<float8_e5m2>(model.scales, all_values<float8_e5m2>(0)));
  });
  CHECK(ends == std::vector<RankEnd>(ranks));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "tensors of 8 bits are saved to a checkpoint and loaded, and not as the other type of 8 bits") {
  run_well<Flat>(2, [&](const dtrain::ProcessGroup<Flat>& group) {
    auto scales = all_values<float8_e5m2>(group.rank());
    const std::vector<dtrain::NamedTensor> state{{"scales", dtrain::tensor_view(scales.data(), {256})}};
    dtrain::save_checkpoint(group, path, state);
    scales.assign(256, float8_e5m2());
    CHECK(dtrain::load_checkpoint(group, path, state));
    CHECK(same<float8_e5m2>(scales, all_values<float8_e5m2>(0)));
    auto others = all_values<float8_e4m3>();
    const std::vector<dtrain::NamedTensor> other{{"scales", dtrain::tensor_view(others.data(), {256})}};
    CHECK_THROWS_WITH_AS(dtrain::load_checkpoint(group, path, other), doctest::Contains("f8e5m2"), dtrain::Error);
  });
}
