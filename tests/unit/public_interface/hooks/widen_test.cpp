// hooks::Widen in host memory: 16-bit gradients whose sum is rounded once.

#include "dtrain/ddp/hooks/cast.hpp"

#include "support/expect_error.hpp"
#include "unit/public_interface/prelude.hpp"

namespace widen_test {

using dtrain::hooks::Widen;

/// Gradients of bf16, f16 and f32.
struct Model {
  std::vector<dtrain::bfloat16> brain = std::vector<dtrain::bfloat16>(1003);
  std::vector<dtrain::float16> half = std::vector<dtrain::float16>(5001);
  std::vector<float> single = std::vector<float>(17);
  std::vector<dtrain::bfloat16> bias = std::vector<dtrain::bfloat16>(1);
  std::vector<float> weights = std::vector<float>(brain.size() + half.size() + single.size() + bias.size());
  std::size_t weights_used = 0;
  std::vector<dtrain::Parameter> list{parameter("brain", brain), parameter("half", half), parameter("single", single),
                                      parameter("bias", bias)};

  template <class T>
  dtrain::Parameter parameter(const char* name, std::vector<T>& gradients) {
    const dtrain::TensorView gradient = dtrain::tensor_view(gradients);
    dtrain::TensorView value = gradient;
    value.data = reinterpret_cast<std::byte*>(weights.data() + weights_used);
    weights_used += gradients.size();
    return {name, value, gradient};
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
};

/// Of one sign, and exact in all types and in sums.
float element(int step, int rank, std::size_t k) {
  return rank == 0 ? 256.0F : static_cast<float>(1 + (k * 7 + static_cast<std::size_t>(step + rank)) % 8);
}

template <class T>
void fill(std::vector<T>& values, int step, int rank) {
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = T(element(step, rank, k));
}

/// Elements that are not the exact result, rounded once. @param precision half of the last place
template <class T>
int wrong_elements(const std::vector<T>& reduced, int step, int ranks, double factor, double precision) {
  int wrong = 0;
  for (std::size_t k = 0; k < reduced.size(); ++k) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      sum += static_cast<double>(element(step, rank, k));
    const double got = static_cast<double>(static_cast<float>(reduced[k]));
    wrong += std::abs(got / (sum * factor) - 1) <= precision * 1.0001 + 1e-6 ? 0 : 1;
  }
  return wrong;
}

TEST_CASE("hooks::Widen rounds a sum of 16-bit gradients once, and sends twice the bytes of these") {
  for (const int ranks : {1, 2, 3}) {
    for (const dtrain::ReduceOp op : {dtrain::ReduceOp::average, dtrain::ReduceOp::sum}) {
      CAPTURE(ranks);
      run_well(ranks, [&](const Group& group) {
        Model model;
        DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = op}, Widen{}};
        for (int step = 0; step < 3; ++step) {
          ddp.backward([&](Ready ready) {
            fill(model.brain, step, group.rank());
            fill(model.half, step, group.rank());
            fill(model.single, step, group.rank());
            fill(model.bias, step, group.rank());
            all_ready(ready, model.list.size());
          });
          const double factor = op == dtrain::ReduceOp::average ? 1.0 / ranks : 1.0;
          CHECK(wrong_elements(model.brain, step, ranks, factor, 1.0 / 256) == 0);
          CHECK(wrong_elements(model.half, step, ranks, factor, 1.0 / 2048) == 0);
          CHECK(wrong_elements(model.single, step, ranks, factor, 0) == 0);
          CHECK(wrong_elements(model.bias, step, ranks, factor, 1.0 / 256) == 0);
        }
        const dtrain::CompressedTraffic traffic = ddp.statistics().hook;
        CHECK((ranks == 1 || (traffic.bytes_sent > traffic.bytes * 19 / 10 && traffic.bytes_sent < traffic.bytes * 2)));
        CHECK((ranks == 1 || traffic.compressing.count() > 0));
      });
    }
  }
}

TEST_CASE("a hooks::Widen is for one model, and an infinity stays one") {
  run_well(1, [](const Group& group) {
    Model model;
    Model other;
    Widen hook;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK_ERROR((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Errc::invalid_argument,
                "a hooks::Widen is given to a second model; each model needs its own",
                "in an elastic job: make the hook in the function of train()");
    ddp.backward([&](Ready ready) {
      model.half[7] = dtrain::float16(std::numeric_limits<float>::infinity());
      all_ready(ready, model.list.size());
    });
    CHECK(static_cast<float>(model.half[7]) == std::numeric_limits<float>::infinity());
  });
}

}  // namespace widen_test
