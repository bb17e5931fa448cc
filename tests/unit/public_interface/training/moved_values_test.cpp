// Models whose values get other memory between steps: ShardedOptimizer, LocalSgd and bindings follow them.

#include "unit/public_interface/prelude.hpp"

namespace moved_values_test {

/// Elements of type T in two parameters, whose values another vector replaces.
template <class T>
class MovingModel {
 public:
  static constexpr std::size_t parameters_count = 2;
  static constexpr std::int64_t sizes[parameters_count] = {3000, 10};

  MovingModel() {
    for (std::size_t i = 0; i < parameters_count; ++i) {
      gradients.emplace_back(size(i), T(0.0F));
      state->values.emplace_back(size(i), T(0.0F));
      state->moves.push_back(0);
      list.push_back({"p" + std::to_string(i), view(state->values[i]), view(gradients[i])});
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
  const void* identity(std::size_t i) const { return &list[i]; }
  dtrain::ddp::ReadValue value_reader() const {
    return [state = state](std::size_t i) {
      if (i == state->refused) throw dtrain::Error(dtrain::Errc::invalid_argument, "it is another tensor");
      if (i == state->shared) {
        return dtrain::ddp::PresentValue{dtrain::tensor_view(state->values[0].data() + 5, {sizes[i]}), 1};
      }
      return dtrain::ddp::PresentValue{view(state->values[i]), state->moves[i]};
    };
  }

  /// All elements of parameter i become `value`, in other memory. @returns the memory before
  std::vector<T> move(std::size_t i, float value) {
    ++state->moves[i];
    return std::exchange(state->values[i], std::vector<T>(size(i), T(value)));
  }
  bool holds(std::size_t i, float value) const {
    return std::all_of(state->values[i].begin(), state->values[i].end(),
                       [value](T element) { return static_cast<float>(element) == value; });
  }
  void step(Ready ready, float gradient) {
    for (std::size_t i = parameters_count; i-- > 0;) {
      gradients[i].assign(size(i), T(gradient));
      ready(i);
    }
  }

  struct State {
    std::vector<std::vector<T>> values;
    std::vector<std::uint64_t> moves;
    std::size_t refused = parameters_count;  ///< its value is another tensor; parameters_count: none
    std::size_t shared = parameters_count;   ///< its value is within that of parameter 0
  };
  std::shared_ptr<State> state = std::make_shared<State>();
  std::vector<std::vector<T>> gradients;
  std::vector<dtrain::Parameter> list;

 private:
  static std::size_t size(std::size_t i) { return static_cast<std::size_t>(sizes[i]); }
  static dtrain::TensorView view(std::vector<T>& elements) { return dtrain::tensor_view(elements); }
};

template <class T>
int wrong_updates(const Group& group, const ShardedOptions& stage) {
  int wrong = 0;
  MovingModel<T> model;
  DistributedDataParallel ddp{model, group};
  const std::vector<T> before_optimizer = model.move(0, 8);
  ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}, stage};
  const auto run = [&] { ddp.backward([&](Ready ready) { model.step(ready, 1); }, optimizer); };
  run();
  wrong += model.holds(0, 7) && model.holds(1, -1) ? 0 : 1;
  const std::vector<T> between_steps = model.move(1, 20);
  run();
  run();
  wrong += model.holds(0, 5) && model.holds(1, 18) ? 0 : 1;
  wrong += static_cast<float>(before_optimizer[0]) == 0 && static_cast<float>(between_steps[0]) == -1 ? 0 : 1;
  return wrong;
}

TEST_CASE("a sharded optimizer updates values where they are now, those of 16 bits from what they are now") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    run_well(ranks, [&](const Group& group) {
      for (const int stage : {1, 2}) {
        for (const bool frees : {false, true}) {
          const ShardedOptions sharding{.stage = stage, .early_update = frees};
          CHECK(wrong_updates<float>(group, sharding) + wrong_updates<dtrain::bfloat16>(group, sharding) == 0);
        }
      }
    });
  }
}

TEST_CASE("values of 16 bits that come to the memory of earlier ones are read again") {
  run_well(2, [&](const Group& group) {
    MovingModel<dtrain::bfloat16> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
    ddp.backward([&](Ready ready) { model.step(ready, 1); }, optimizer);
    std::fill(model.state->values[0].begin(), model.state->values[0].end(), dtrain::bfloat16(64.0F));
    ++model.state->moves[0];
    ddp.backward([&](Ready ready) { model.step(ready, 1); }, optimizer);
    CHECK((model.holds(0, 63) && model.holds(1, -2)));
  });
}

TEST_CASE("a value that has become another tensor, or shares memory now, ends the job before anything is written") {
  for (const bool shares : {false, true}) {
    CAPTURE(shares);
    const std::string sentence =
        shares ? "the values of parameter 0 'p0' and parameter 1 'p1' share memory; list a tied parameter once"
               : "it is another tensor";
    expect_ends(2, {sentence}, [&](const Group& group) {
      MovingModel<float> model;
      DistributedDataParallel ddp{model, group};
      ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}};
      if (group.rank() == 1) (shares ? model.state->shared : model.state->refused) = 1;
      try {
        ddp.backward([&](Ready ready) { model.step(ready, 1); }, optimizer);
        CHECK_MESSAGE(false, "nothing was thrown");
      } catch (...) {
        CHECK((model.holds(0, 0) && model.holds(1, 0)));
        throw;
      }
    });
  }
}

TEST_CASE("LocalSgd averages values where they are now") {
  run_well(3, [&](const Group& group) {
    MovingModel<float> model;
    dtrain::hooks::LocalSgd local;
    std::optional<DistributedDataParallel<MovingModel<float>, front_test::Policy>> ddp;
    ddp.emplace(model, group, dtrain::DdpOptions{}, std::ref(local));
    ddp->backward([&](Ready ready) { model.step(ready, 1); });
    const auto rank = static_cast<float>(group.rank());
    const std::vector<float> before = model.move(0, rank);
    local.average_now(group);
    CHECK((model.holds(0, 1) && model.holds(1, 0) && before[0] == 0));
    ddp.reset();
    model.move(1, 3 * rank);
    local.average_now(group);
    CHECK((model.holds(0, 1) && model.holds(1, 3)));
  });
}

}  // namespace moved_values_test
