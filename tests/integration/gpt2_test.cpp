// ctest: TIMEOUT 180 PROCESSORS 2
// Trainings of minutes under a sanitizer; the same paths run there with small models and ranks as threads
// (unit.public_interface).
// ctest: LABELS long no-asan no-tsan
// What the example promises: it learns, and it is one training whatever the ranks and whoever has the optimizer's
// state.

#include "integration/prelude.hpp"
#include "support/gpt2_program.hpp"

using gpt2_program::can_run;
using gpt2_program::difference;
using gpt2_program::losses_of;
using gpt2_program::run;
using gpt2_program::train;

TEST_CASE("one training, whatever the ranks: 1, 2 and 4 of them have the same falling losses, without jumps") {
  if (!can_run()) return;
  // The default model on shorter sequences: the small one has no jumps at a learning rate at which this one has them.
  const auto losses_on = [](const char* ranks) {
    return losses_of(
        train({std::string("--nproc-per-node=") + ranks, "--layers=4", "--channels=128", "--steps=40", "--seed=2"}));
  };
  const std::vector<double> of_1 = losses_on("1");
  REQUIRE(of_1.size() == 40);
  CHECK(of_1.front() == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(of_1.back() < 0.75 * of_1.front());
  for (std::size_t step = 1; step < of_1.size(); ++step) {
    CAPTURE(step);
    CHECK(of_1[step] < 1.5 * of_1[step - 1]);
  }
  for (const char* ranks : {"2", "4"}) {
    CAPTURE(ranks);
    CHECK(difference(losses_on(ranks), of_1) < 1e-3);
  }
}

TEST_CASE("two ranks give the same bits again, also with the optimizer's state divided, and the gradients") {
  if (!can_run()) return;
  const SummaryFile whole = train({"--nproc-per-node=2", "--clip=0"});
  CHECK(train({"--nproc-per-node=2", "--clip=0"}).text("parameters_digest") == whole.text("parameters_digest"));
  const SummaryFile measured = train({"--nproc-per-node=2", "--clip=0", "--plan=measured"});  // with other buckets
  CHECK(measured.text("parameters_digest") == whole.text("parameters_digest"));
  const double parameters = whole.number("parameters");
  CHECK(whole.number("steps") == 20);
  CHECK(whole.number("step_ms") > 0);
  CHECK(whole.number("exposed_ms_per_step") >= 0);
  CHECK(whole.number("optimizer_bytes") == 8 * parameters);
  CHECK(whole.number("gradient_bytes") == doctest::Approx(4 * parameters).epsilon(0.02));
  CHECK(whole.number("bytes_sent_per_step") == 4 * parameters);
  constexpr double bucket = 65536;  // no parameter is larger
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    const SummaryFile divided =
        train({"--nproc-per-node=2", "--clip=0", "--bucket-mib=0.0625", "--zero=" + std::to_string(stage)});
    CHECK(difference(losses_of(divided), losses_of(whole)) < 1e-3);
    CHECK(divided.text("parameters_digest") == whole.text("parameters_digest"));
    CHECK(divided.number("optimizer_bytes") == doctest::Approx(4 * parameters).epsilon(0.02));
    CHECK(divided.number("bytes_sent_per_step") == 4 * parameters);
    CHECK(divided.number("state_bytes_per_rank") ==
          divided.number("optimizer_bytes") + divided.number("gradient_bytes"));
    if (stage == 1) {
      CHECK(divided.number("gradient_bytes") == whole.number("gradient_bytes"));
    } else {  // half of them, up to two buckets, and what the model computes in: a parameter's and the embeddings'
      const double computing = 2 * bucket;
      CHECK(divided.number("gradient_bytes") >= 2 * parameters + computing);
      CHECK(divided.number("gradient_bytes") <= 1.02 * 2 * parameters + computing + 2 * bucket);
    }
  }
}

TEST_CASE("clipped gradients give one training too, with state and gradients whole and divided") {
  if (!can_run()) return;
  const SummaryFile whole = train({"--nproc-per-node=2", "--clip=0.5"});
  for (const char* stage : {"--zero=1", "--zero=2"}) {
    CAPTURE(stage);
    CHECK(difference(losses_of(train({"--nproc-per-node=2", "--clip=0.5", stage})), losses_of(whole)) < 1e-3);
  }
  // AdamW's steps hardly depend on the gradients' scale, so the losses are nearly alike, but not the bits.
  CHECK(train({"--nproc-per-node=2", "--clip=0"}).text("parameters_digest") != whole.text("parameters_digest"));
}

TEST_CASE("with hooks the loss falls nearly as far, and the bytes are those that travel") {
  if (!can_run()) return;
  const SummaryFile plain = train({"--nproc-per-node=2"});
  const auto loss = [](const SummaryFile& summary) { return summary.number("final_loss"); };
  const auto bytes = [](const SummaryFile& summary) { return summary.number("bytes_sent_per_step"); };
  for (const char* hook : {"bf16", "f16", "bf16:error-feedback"}) {
    CAPTURE(hook);
    const SummaryFile half = train({"--nproc-per-node=2", std::string("--hook=") + hook});
    CHECK(std::abs(loss(half) - loss(plain)) < 0.02);
    CHECK(bytes(half) == doctest::Approx(bytes(plain) / 2).epsilon(0.01));
  }
  const SummaryFile low_rank = train({"--nproc-per-node=2", "--hook=powersgd:4"});
  CHECK(loss(low_rank) < loss(plain) + 0.5);
  CHECK(bytes(low_rank) < bytes(plain) / 5);
  CHECK(bytes(train({"--nproc-per-node=2", "--hook=powersgd:1"})) < bytes(low_rank));
}

TEST_CASE("bf16 parameters reach f32's loss, with the same bits whoever has the f32 weights, and half the bytes") {
  if (!can_run()) return;
  const SummaryFile wide = train({"--nproc-per-node=2"});
  const SummaryFile half = train({"--nproc-per-node=2", "--dtype=bf16"});
  const std::vector<double> losses = losses_of(half);
  CHECK(std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); }));
  CHECK(difference(losses, losses_of(wide)) < 0.05);  // rounding of weights and gradients; 0.01 is usual
  CHECK(half.text("parameters_digest") != wide.text("parameters_digest"));
  CHECK(half.number("bytes_sent_per_step") == wide.number("bytes_sent_per_step") / 2);
  CHECK(half.number("optimizer_bytes") == 12 * half.number("parameters"));
  for (const char* stage : {"--zero=1", "--zero=2"}) {
    CAPTURE(stage);
    const SummaryFile divided = train({"--nproc-per-node=2", "--dtype=bf16", stage});
    CHECK(divided.text("parameters_digest") == half.text("parameters_digest"));
    CHECK(divided.number("bytes_sent_per_step") == half.number("bytes_sent_per_step"));
    CHECK(divided.number("optimizer_bytes") == doctest::Approx(6 * half.number("parameters")).epsilon(0.02));
  }
}

TEST_CASE("what does not fit the ranks, the memory or the text is refused in one sentence") {
  if (!can_run()) return;
  const auto refusal = [](std::vector<std::string> arguments) {
    const Result result = run(std::move(arguments));
    CHECK(result.exit_code != 0);
    return result.error;
  };
  CHECK_CONTAINS(refusal({"--nproc-per-node=3"}), "--global-batch is 16, which 3 ranks do not divide evenly");
  CHECK_CONTAINS(refusal({"--nproc-per-node=1", "--layers=100", "--channels=8192", "--global-batch=100000"}),
                 "MiB, which this host does not have");
  CHECK_CONTAINS(refusal({"--nproc-per-node=2", "--data=/etc/hostname"}), "the text has ");
  CHECK_CONTAINS(refusal({"--nproc-per-node=2", "--zero=1", "--hook=bf16"}), "cannot be used with --zero");
  CHECK_CONTAINS(refusal({"--nproc-per-node=2", "--zero=1", "--plan=measured"}), "cannot be used with --plan");
  CHECK_CONTAINS(refusal({"--nproc-per-node=1", "--hook=powersgd"}), "powersgd:RANK");
}
