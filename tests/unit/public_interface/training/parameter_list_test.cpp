// A list of parameters in place of a model.
#include "unit/public_interface/prelude.hpp"

namespace {

using ListDdp = DistributedDataParallel<dtrain::ParameterList, Policy>;

/// A training library's arrays, which no class with parameters() holds.
struct Arrays {
  std::vector<float> value = std::vector<float>(5, 1.0F);
  std::vector<float> gradient = std::vector<float>(5);

  std::vector<dtrain::Parameter> list() {
    return {{"array", dtrain::tensor_view(value), dtrain::tensor_view(gradient)}};
  }
};

/// Rank r's gradient is r + 1.
void run_step(ListDdp& ddp, Arrays& arrays, const Group& group) {
  ddp.backward([&](Ready ready) {
    std::fill(arrays.gradient.begin(), arrays.gradient.end(), static_cast<float>(group.rank() + 1));
    ready(0);
  });
}

/// Its job is to be where a caller keeps it: the type can be named.
struct Trainer {
  std::optional<ListDdp> ddp;
  std::optional<ListDdp::Sharded<optimizers::Sgd>> optimizer;
};

/// Sends nothing: each rank keeps its own gradients.
struct KeepOwn {
  template <class C>
  void reduce(const dtrain::GradientBucket<C>&) {}
};

}  // namespace

TEST_CASE("a vector, a span and a temporary list of parameters are wrapped as a model is, and need not live on") {
  run_well(2, [](const Group& group) {
    Arrays arrays;
    if (group.rank() == 1) arrays.value[0] = 7.0F;
    std::optional<std::vector<dtrain::Parameter>> list = arrays.list();
    ListDdp of_vector{*list, group};
    CHECK(arrays.value == std::vector<float>(5, 1.0F));  // rank 0's
    ListDdp of_span{std::span<const dtrain::Parameter>(*list), group};
    DistributedDataParallel of_temporary{arrays.list(), group, DdpOptions{.reduce_op = ReduceOp::sum}};
    list.reset();
    for (ListDdp* ddp : {&of_vector, &of_span}) {
      run_step(*ddp, arrays, group);
      CHECK(arrays.gradient == std::vector<float>(5, 1.5F));
    }
    run_step(of_temporary, arrays, group);
    CHECK(arrays.gradient == std::vector<float>(5, 3.0F));
    CHECK(of_span.parameters().front().name == "array");
  });
}

TEST_CASE("a list is wrapped with a hook, and its wrapper and sharded optimizer are members of a class") {
  run_well(2, [](const Group& group) {
    Arrays arrays;
    DistributedDataParallel hooked{arrays.list(), group, {}, KeepOwn{}};
    run_step(hooked, arrays, group);
    CHECK(arrays.gradient == std::vector<float>(5, static_cast<float>(group.rank() + 1)));

    Trainer trainer;
    trainer.ddp.emplace(arrays.list(), group);
    trainer.optimizer.emplace(*trainer.ddp, optimizers::Sgd{.rate = 0.5F});
    trainer.ddp->backward(
        [&](Ready ready) {
          std::fill(arrays.gradient.begin(), arrays.gradient.end(), static_cast<float>(group.rank() + 1));
          ready(0);
        },
        *trainer.optimizer);
    CHECK(arrays.value == std::vector<float>(5, 1.0F - 0.5F * 1.5F));
  });
}

TEST_CASE("a list that cannot be trained is refused as a model is") {
  run_well(1, [](const Group& group) {
    const std::vector<dtrain::Parameter> empty;
    CHECK_THROWS_WITH_AS((DistributedDataParallel{empty, group}), doctest::Contains("there is nothing to train"),
                         dtrain::Error);
    Arrays arrays;
    arrays.gradient.resize(4);
    CHECK_THROWS_WITH_AS((DistributedDataParallel{arrays.list(), group}), doctest::Contains("they must be alike"),
                         dtrain::Error);
  });
}
