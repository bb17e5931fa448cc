// A rank that throws or leaves after a sharded step: what the others are told, whatever they are in.

#include "unit/public_interface/prelude.hpp"

namespace sharded_failure_test {

/// A model after two steps.
struct Training {
  Training(const Group& group, int stage, Progress progress)
      : ddp{model, group, {.bucket_bytes = 3000, .progress = progress}},
        optimizer{ddp, optimizers::Sgd{.rate = 1}, {.stage = stage}} {
    for (int i = 0; i < 2; ++i)
      run();
  }
  void run() {
    ddp.backward([this](Ready ready) { fill_gradients(model, ready, 1.0F); }, optimizer);
  }

  Model model{{5, 2049, 0, 1, 700, 17, 4096, 31}};
  DistributedDataParallel<Model, front_test::Policy> ddp;
  decltype(ddp)::Sharded<optimizers::Sgd> optimizer;
};

/// How rank 1 ends after a step, and what the others do meanwhile.
enum class End { throws, leaves };
enum class Others { take_another_step, compute_before_they_do, meet_in_a_barrier };

void check_end(End end, Others others, Progress progress, int stage) {
  CAPTURE(static_cast<int>(end));
  CAPTURE(static_cast<int>(others));
  CAPTURE(static_cast<int>(progress));
  CAPTURE(stage);
  const auto began = std::chrono::steady_clock::now();
  std::array<std::string, 3> texts;
  const auto ends = support::run_groups<front_test::Policy>(3, [&](const Group& group) {
    try {
      Training training(group, stage, progress);  // the others may still be in it when rank 1 ends
      if (group.rank() == 1) {
        if (end == End::throws) throw std::runtime_error("the loss is not a number");
        group.leave();
        return;
      }
      if (others == Others::compute_before_they_do) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (others != Others::meet_in_a_barrier) training.run();
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

TEST_CASE("a rank that throws or leaves after a sharded step ends the others with one cause, whatever they are in") {
  for (const End end : {End::throws, End::leaves}) {
    for (const Others others : {Others::take_another_step, Others::compute_before_they_do, Others::meet_in_a_barrier}) {
      for (const Progress progress : {Progress::caller, Progress::thread}) {
        for (const int stage : {1, 2})
          check_end(end, others, progress, stage);
      }
    }
  }
}

}  // namespace sharded_failure_test
