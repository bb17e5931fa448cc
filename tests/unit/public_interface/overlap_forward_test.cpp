// Between a step with overlap_forward and its wait_for(i): checkpoints, ranks that fail or leave, and destruction.

#include "unit/public_interface/prelude.hpp"

namespace overlap_forward_jobs_test {

const std::vector<std::size_t> sizes{5, 2049, 0, 1, 700, 17, 4096, 31};

/// A model of the rank after two steps, the second of which has left the weights to wait_for. Each step subtracts 1
/// from all weights.
template <class Stage>
struct OpenStep {
  OpenStep(const Group& group, Progress progress) : ddp{model, group, {.bucket_bytes = 3000, .progress = progress}} {
    for (int i = 0; i < 2; ++i)
      run();
  }
  void run() {
    ddp.backward([this](Ready ready) { fill_gradients(model, ready, 1.0F); }, *optimizer);
  }

  Model model{sizes};
  DistributedDataParallel<Model, front_test::Policy> ddp;
  using Optimizer = decltype(ShardedOptimizer{ddp, optimizers::Sgd{}, Stage{}});
  std::unique_ptr<Optimizer> optimizer =
      std::make_unique<Optimizer>(ddp, optimizers::Sgd{.rate = 1}, Stage{.overlap_forward = true});
};

template <class Stage>
int wrong_checkpoints(const Group& group, Progress progress, const std::string& folder) {
  const std::string path = folder + "/state";
  int wrong = 0;
  OpenStep<Stage> training(group, progress);
  const std::vector<dtrain::NamedTensor> values = dtrain::parameter_values(training.model.list);
  dtrain::save_checkpoint(group, path, values, *training.optimizer);
  training.run();
  dtrain::PendingCheckpoint saving = dtrain::save_checkpoint_async(group, path + "2", values, *training.optimizer);
  training.run();
  saving.wait();
  for (const char* suffix : {"", "2"}) {
    training.run();
    training.run();  // its weights are not to replace those that are loaded
    wrong += dtrain::load_checkpoint(group, path + suffix, values, *training.optimizer) ? 0 : 1;
    training.optimizer->wait();
    wrong += training.model.all_are(*suffix == '2' ? -3.0F : -2.0F) ? 0 : 1;
    wrong += training.optimizer->steps() == (*suffix == '2' ? 3 : 2) ? 0 : 1;
  }
  return wrong;
}

TEST_CASE("checkpoints before the waits of a step have its weights, and loaded ones are not overwritten by them") {
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    const support::TemporaryDirectory one;
    const support::TemporaryDirectory two;
    run_well(3, [&](const Group& group) {
      CHECK(wrong_checkpoints<dtrain::zero::States>(group, progress, one.path) == 0);
      CHECK(wrong_checkpoints<dtrain::zero::Gradients>(group, progress, two.path) == 0);
    });
  }
}

template <class Stage>
int wrong_destructions(const Group& group, Progress progress) {
  int wrong = 0;
  OpenStep<Stage> training(group, progress);
  training.optimizer.reset();
  wrong += training.model.all_are(-2) ? 0 : 1;
  std::optional<DistributedDataParallel<Model, front_test::Policy>> ddp;
  Model model(sizes);
  ddp.emplace(model, group, dtrain::DdpOptions{.bucket_bytes = 3000, .progress = progress});
  {
    ShardedOptimizer optimizer{*ddp, optimizers::Sgd{.rate = 1}, Stage{.overlap_forward = true}};
    ddp->backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); }, optimizer);
    ddp->wait_for(1);
  }
  ddp.reset();
  return wrong + (model.all_are(-1) ? 0 : 1);
}

/// A checkpoint of the weights alone, while those of another training are to come too.
template <class Stage>
int wrong_plain_checkpoints(const Group& group, Progress progress, const std::string& folder) {
  int wrong = 0;
  OpenStep<Stage> training(group, progress);
  OpenStep<Stage> other(group, progress);
  const std::vector<dtrain::NamedTensor> values = dtrain::parameter_values(training.model.list);
  dtrain::save_checkpoint(group, folder + "/state", values);
  wrong += training.model.all_are(-2) ? 0 : 1;
  training.run();
  dtrain::PendingCheckpoint saving = dtrain::save_checkpoint_async(group, folder + "/async", values);
  training.run();
  saving.wait();
  for (const char* name : {"/state", "/async"}) {
    training.run();
    training.run();
    wrong += dtrain::load_checkpoint(group, folder + name, values) ? 0 : 1;
    training.optimizer->wait();
    wrong += training.model.all_are(name[1] == 's' ? -2.0F : -3.0F) ? 0 : 1;
  }
  other.optimizer->wait();
  wrong += other.model.all_are(-2) ? 0 : 1;
  other.run();
  dtrain::save_checkpoint(group, folder + "/other", dtrain::parameter_values(other.model.list), *training.optimizer);
  return wrong + (other.model.all_are(-3) ? 0 : 1);
}

TEST_CASE("checkpoints without the optimizer wait for the weights that they have") {
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    const support::TemporaryDirectory one;
    const support::TemporaryDirectory two;
    run_well(3, [&](const Group& group) {
      CHECK(wrong_plain_checkpoints<dtrain::zero::States>(group, progress, one.path) == 0);
      CHECK(wrong_plain_checkpoints<dtrain::zero::Gradients>(group, progress, two.path) == 0);
    });
  }
}

TEST_CASE("an optimizer, and then its wrapper, destroyed before the waits of a step leave all of its weights") {
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    run_well(3, [&](const Group& group) {
      CHECK(wrong_destructions<dtrain::zero::States>(group, progress) == 0);
      CHECK(wrong_destructions<dtrain::zero::Gradients>(group, progress) == 0);
    });
  }
}

/// How rank 1 ends between a step and its waits, and what the others do meanwhile.
enum class End { throws, leaves };
enum class Others { wait, compute_before_they_wait, take_another_step, meet_in_a_barrier };

template <class Stage>
void check_end(End end, Others others, Progress progress) {
  CAPTURE(static_cast<int>(end));
  CAPTURE(static_cast<int>(others));
  CAPTURE(static_cast<int>(progress));
  const auto began = std::chrono::steady_clock::now();
  std::array<std::string, 3> texts;
  const auto ends = support::run_groups<front_test::Policy>(3, [&](const Group& group) {
    try {
      OpenStep<Stage> training(group, progress);  // the others may still be in it when rank 1 ends
      if (group.rank() == 1) {
        if (end == End::throws) throw std::runtime_error("the loss is not a number");
        group.leave();
        return;
      }
      if (others == Others::compute_before_they_wait) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (others == Others::wait || others == Others::compute_before_they_wait) {
        for (std::size_t i = 0; i < sizes.size(); ++i)
          training.ddp.wait_for(i);
      } else if (others == Others::take_another_step) {
        training.run();
      }
      group.barrier();
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(group.rank())] = error.what();
      throw;
    }
  });
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));  // a collective has 20
  const std::string cause = end == End::throws ? "the loss is not a number" : "rank 1";
  for (const int rank : {0, 2}) {
    CAPTURE(rank);
    CHECK(texts[static_cast<std::size_t>(rank)].find(cause) != std::string::npos);
    CHECK(ends[static_cast<std::size_t>(rank)].text == texts[static_cast<std::size_t>(rank)]);
  }
}

TEST_CASE("a rank that throws or leaves before the waits ends the others with one cause, whatever they are in") {
  for (const End end : {End::throws, End::leaves}) {
    for (const Others others :
         {Others::wait, Others::compute_before_they_wait, Others::take_another_step, Others::meet_in_a_barrier}) {
      for (const Progress progress : {Progress::caller, Progress::thread}) {
        check_end<dtrain::zero::States>(end, others, progress);
        check_end<dtrain::zero::Gradients>(end, others, progress);
      }
    }
  }
}

}  // namespace overlap_forward_jobs_test
