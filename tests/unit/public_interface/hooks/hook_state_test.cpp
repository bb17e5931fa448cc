// What hooks keep from step to step, in a checkpoint: a training that goes on from it is the one that wrote it.

#include "unit/public_interface/prelude.hpp"

namespace hook_state_test {

/// A matrix, a vector, and a matrix that is not worth compressing.
struct Matrices : front_test::Shaped<> {
  Matrices() : Shaped({{40, 30}, {7}, {3, 2}}) {}
};

/// Element k of rank's gradients in a step.
float wave(int step, int rank, std::size_t k) {
  return std::sin(static_cast<float>(step * 7919 + rank * 1047) + static_cast<float>(k) * 3.7F);
}

template <class Ddp>
void train(Ddp& ddp, Matrices& model, int step, int rank) {
  run_step(ddp, model, [&](std::size_t, std::size_t k) { return wave(step, rank, k); });
  descend(model, 0.1F);
}

template <class Hook>
void after_step(Hook& hook, const Group& group) {
  if constexpr (requires { hook.average(group); }) hook.average(group);
}

std::vector<dtrain::NamedTensor> all_tensors(const Matrices& model, std::vector<dtrain::NamedTensor> state) {
  for (const dtrain::NamedTensor& value : dtrain::ddp::parameter_values(model.list))
    state.push_back(value);
  return state;
}

/// @returns whether ten steps, with a checkpoint after `saved` of them, end as the training that goes on from it
template <class Hook, class Options>
bool goes_on_alike(const Group& group, const Options& options, int saved, const std::string& path) {
  Hook hook{options};
  Matrices model;
  DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  for (int step = 0; step < 10; ++step) {
    if (step == saved) {
      const auto tensors = all_tensors(model, hook.state(group));
      dtrain::save_checkpoint(group, path, tensors);
    }
    train(ddp, model, step, group.rank());
    after_step(hook, group);
  }

  Hook next_hook{options};
  Matrices next;
  DistributedDataParallel next_ddp{next, group, {}, std::ref(next_hook)};
  const auto tensors = all_tensors(next, next_hook.state(group));
  const bool is_alike = dtrain::load_checkpoint(group, path, tensors);
  for (int step = saved; step < 10; ++step) {
    train(next_ddp, next, step, group.rank());
    after_step(next_hook, group);
  }
  return is_alike && whole_optimizer::equal_bits(model.values, next.values);
}

TEST_CASE("a training that goes on with a hook's state from a checkpoint has the bits of the one that saved it") {
  const support::TemporaryDirectory folder;
  for (const int ranks : {1, 3}) {
    for (const int saved : {0, 1, 6}) {
      CAPTURE(ranks);
      CAPTURE(saved);
      run_well(ranks, [&](const Group& group) {
        const auto path = [&](const char* name) { return folder.path + "/" + name + std::to_string(saved); };
        using namespace dtrain::hooks;
        CHECK(goes_on_alike<PowerSgd>(group, PowerSgdOptions{.rank = 2, .start_after = 2}, saved, path("power")));
        CHECK(goes_on_alike<TopK>(group, TopKOptions{.fraction = 0.05, .start_after = 2}, saved, path("top")));
        CHECK(goes_on_alike<LocalSgd>(group, LocalSgdOptions{.every = 3, .start_after = 2}, saved, path("local")));
        const CastOptions feedback{.error_feedback = [](const dtrain::Parameter& one) { return one.name != "layer1"; }};
        CHECK(goes_on_alike<Cast<dtrain::bfloat16>>(group, feedback, saved, path("cast")));
      });
    }
  }
}

TEST_CASE("errors of hooks::Cast are kept for the parameters that have error feedback, in a checkpoint too") {
  run_well(2, [](const Group& group) {
    dtrain::hooks::Cast<dtrain::bfloat16> hook{
        {.error_feedback = [](const dtrain::Parameter& one) { return one.name == "layer1"; }}};
    Matrices model;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    for (int step = 0; step < 3; ++step)
      train(ddp, model, step, group.rank());
    const std::vector<dtrain::NamedTensor> state = hook.state(group);
    REQUIRE(state.size() == 1);
    CHECK(state[0].name == "cast/1/error");
    const std::span<const float> error = state[0].value.as<float>();
    CHECK(error.size() == 7);
    CHECK(std::any_of(error.begin(), error.end(), [](float one) { return one != 0; }));
    dtrain::hooks::Cast<dtrain::bfloat16> without;
    CHECK(without.state(group).empty());
  });
}

TEST_CASE("state() keeps what the ranks owe in sum, and gives it to each alike") {
  run_well(2, [&](const Group& group) {
    dtrain::hooks::TopK hook{{.fraction = 0.05}};
    Matrices model;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    std::vector<double> owed(40 * 30);
    for (int step = 0; step < 3; ++step) {
      train(ddp, model, step, group.rank());
      for (std::size_t k = 0; k < owed.size(); ++k)
        owed[k] += (static_cast<double>(wave(step, 0, k)) + wave(step, 1, k)) / 2 - model.gradients[0][k];
    }
    bool is_right = false;
    for (const dtrain::NamedTensor& tensor : hook.state(group)) {
      if (tensor.name != "top_k/0/error") continue;
      is_right = true;
      const std::span<const float> error = tensor.value.as<float>();
      for (std::size_t k = 0; k < owed.size(); ++k)
        is_right = is_right && std::abs(owed[k] - error[k]) < 1e-5;
    }
    CHECK(is_right);
  });
}

/// The most of an error's elements that a bf16 can hold, by tensor, after three steps with a topology that sends bf16.
template <class Make>
double largest_share_of_short_errors(Make make) {
  using Nodes = dtrain::topology::Hierarchical<dtrain::backend::SharedMemory, dtrain::wire::Bf16>;
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, support::CountingBackend, Nodes>;
  support::CountedNetworks::instance().clear();
  std::vector<double> shares(2, 1);
  const auto body = [&](const dtrain::ProcessGroup<Policy>& group) {
    auto hook = make();
    Matrices model;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    for (int step = 0; step < 3; ++step)
      train(ddp, model, step, group.rank());
    double& share = shares[static_cast<std::size_t>(group.rank())];
    for (const dtrain::NamedTensor& tensor : hook.state(group)) {
      if (tensor.name.find("/error") == std::string::npos) continue;
      const std::span<const float> error = tensor.value.as<float>();
      const auto is_short = [](float one) { return static_cast<float>(dtrain::bfloat16(one)) == one; };
      const auto count = std::count_if(error.begin(), error.end(), is_short);
      share = std::min(share, static_cast<double>(count) / static_cast<double>(error.size()));
    }
  };
  run_well<Policy>(2, body, std::chrono::seconds(30), {"a", "b"});
  return std::max(shares[0], shares[1]);
}

TEST_CASE("a topology with a wire type does not round the errors that state() averages") {
  using namespace dtrain::hooks;
  CHECK(largest_share_of_short_errors([] { return TopK{{.fraction = 0.05}}; }) < 0.2);  // what was sent is 0
  CHECK(largest_share_of_short_errors([] { return PowerSgd{{.rank = 2}}; }) < 0.1);
  CHECK(largest_share_of_short_errors([] { return Cast<dtrain::float16>{{.error_feedback = every_parameter}}; }) < 0.1);
}

/// Asks for the state by a group of one rank, in a job of two, before or after the first step.
template <class Make>
std::string text_of_wrong_group(Make make, bool has_stepped) {
  std::string text;
  const auto ends = support::run_groups<front_test::Policy>(2, [&](const Group& group) {
    auto own = make();
    Matrices model;
    DistributedDataParallel ddp{model, group, {}, std::ref(own)};
    const Group alone = group.split(group.rank(), 0);
    if (has_stepped) train(ddp, model, 0, group.rank());
    static_cast<void>(own.state(alone));
    for (int step = 0; step < 5; ++step)
      train(ddp, model, step, group.rank());
  });
  for (const support::RankEnd& end : ends)
    text += end.text;
  return text;
}

TEST_CASE("state() with a group of another number of ranks than the wrapper's is refused, before the first step too") {
  using namespace dtrain::hooks;
  for (const bool has_stepped : {false, true}) {
    CAPTURE(has_stepped);
    const auto is_refused = [&](auto make, const std::string& name) {
      return text_of_wrong_group(make, has_stepped)
                 .find(name +
                       ": state() was given a group of world size 1, but the model is wrapped in one of world "
                       "size 2; give state() the wrapper's group") != std::string::npos;
    };
    CHECK(is_refused([] { return TopK{{.fraction = 0.1}}; }, "hooks::TopK"));
    CHECK(is_refused([] { return PowerSgd{{.rank = 2}}; }, "hooks::PowerSgd"));
    CHECK(is_refused([] { return Cast<dtrain::bfloat16>{{.error_feedback = every_parameter}}; }, "hooks::Cast"));
    CHECK(is_refused([] { return LocalSgd{{.every = 3}}; }, "hooks::LocalSgd"));
  }
}

TEST_CASE("a cast without error feedback serves models of groups of different sizes, and asks for no group's state") {
  run_well(2, [](const Group& group) {
    dtrain::hooks::Cast<dtrain::bfloat16> hook;
    Matrices model;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK(hook.state(group).empty());
    const Group alone = group.split(group.rank(), 0);
    Matrices own;
    DistributedDataParallel own_ddp{own, alone, {}, std::ref(hook)};
    train(own_ddp, own, 0, group.rank());
    train(ddp, model, 0, group.rank());
    CHECK(hook.state(alone).empty());
  });
}

TEST_CASE("a LocalSgd serves a later wrapper of its model, in a group of another size") {
  run_well(2, [](const Group& group) {
    const Group alone = group.split(group.rank(), 0);
    dtrain::hooks::LocalSgd hook{{.every = 1}};
    Matrices model;
    for (const Group& each : {group, alone, group}) {
      DistributedDataParallel ddp{model, each, {}, std::ref(hook)};
      train(ddp, model, 0, group.rank());
      CHECK(hook.average(each));
      CHECK(hook.state(each).size() == 1);
    }
    CHECK(hook.steps() == 3);
  });
}

}  // namespace hook_state_test
