#include "dtrain/ddp/reduction/ready_check.hpp"
#include "support/allocation_count.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// Four gradients; every bucket has one.
struct CheckedRank : FakeRank {
  explicit CheckedRank(bool binds, DdpOptions options = {}, LateWrites late_writes = LateWrites::refused)
      : FakeRank({20, 3, 100, 17}, {0, 0}, true, 60s, options, {.late_writes = late_writes}) {
    if (binds) bind_all();
  }

  void pass(Step& step) {
    for (std::size_t i = 0; i < 4; ++i) {
      write(i, static_cast<float>(i + 1));
      step.ready(i);
    }
  }
  Step begun_pass() {
    Step step = reducer->begin();
    pass(step);
    return step;
  }
  void held_pass(Accumulation& accumulation) {
    Step held = accumulation.begin();
    pass(held);
    held.finish();
  }
};

constexpr const char* sentence = "the gradient of parameter 2 'p2' changed after ready(2)";

}  // namespace

TEST_CASE("debug programs check gradients unless an option says otherwise, others none") {
  DdpOptions options;
  CHECK(checked_late_writes(options, true) == LateWrites::logged);
  CHECK(checked_late_writes(options, false) == LateWrites::unchecked);
  options.check_ready = false;
  CHECK(checked_late_writes(options, true) == LateWrites::unchecked);
  options.check_ready = true;
  CHECK(checked_late_writes(options, false) == LateWrites::refused);
}

TEST_CASE("a step without the option reads a part of a gradient, and 64 steps together read every byte") {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{9000}, std::size_t{20483}}) {
    CAPTURE(bytes);
    std::vector<std::byte> content(bytes, std::byte{5});
    std::vector<std::uint64_t> before(64);
    for (std::uint64_t step = 0; step < 64; ++step)
      before[step] = digest_of_part(content.data(), bytes, step);
    const auto seen_by = [&] {
      std::size_t count = 0;
      for (std::uint64_t step = 0; step < 64; ++step)
        count += digest_of_part(content.data(), bytes, 640 + step) != before[step] ? 1 : 0;
      return count;
    };
    bool is_right = true;
    for (std::size_t i = 0; i < bytes; ++i) {
      content[i] = std::byte{6};
      is_right = is_right && seen_by() == (bytes <= 4096 ? 64 : 1);
      content[i] = std::byte{5};
    }
    CHECK(is_right);
    std::fill(content.begin(), content.end(), std::byte{6});
    CHECK(seen_by() == (bytes == 0 ? 0 : 64));
  }
}

TEST_CASE("without the option a large gradient that is written anew is found at once, and one element after 64 steps") {
  for (const bool is_whole : {false, true}) {
    CAPTURE(is_whole);
    FakeRank rank({20, 5000, 3}, {0, 0}, true, 60s, {}, {.late_writes = LateWrites::logged});
    rank.bind_all();
    int steps = 0;
    std::string error;
    while (error.empty() && ++steps <= 64) {
      Step step = rank.reducer->begin();
      rank.write(1, static_cast<float>(steps));
      step.ready(1);  // waits for bucket 2
      if (is_whole) rank.write(1, -1.0F);
      rank.parameters[1].gradient.as<float>()[0] = -1.0F;
      step.ready(2);
      step.ready(0);
      try {
        step.finish();
      } catch (const Error& thrown) {
        error = thrown.what();
      }
    }
    CHECK(steps == (is_whole ? 1 : 64));
    CHECK_CONTAINS(error, "the gradient of parameter 1 'p1' changed after ready(1)");
  }
}

TEST_CASE("steps that write each gradient before its ready() pass, bound or not, and allocate nothing") {
  for (const bool binds : {false, true}) {
    CAPTURE(binds);
    CheckedRank rank(binds);
    rank.begun_pass().finish();
    const std::size_t before = support::allocations.load();
    for (int step = 0; step < 20; ++step) {
      rank.stream.forget_completed();
      rank.channel->launches.clear();
      rank.begun_pass().finish();
    }
    CHECK(support::allocations.load() == before);
    CHECK(rank.read(2) == 30.0F);
  }
}

TEST_CASE("a gradient that is written after its ready() ends the step, with its name, and the job") {
  CheckedRank rank(false);
  rank.begun_pass().finish();
  Step step = rank.begun_pass();
  rank.gradients[2][99] = 8.0F;  // one element
  CHECK_ERROR(step.finish(), Errc::invalid_argument, sentence, "DdpOptions::check_ready");
  REQUIRE(rank.latch->failed());
  CHECK_CONTAINS(rank.latch->cause()->text, sentence);
}

TEST_CASE(
    "without the option a gradient that is not bound may be written after ready(): one warning, and the copy counts") {
  CheckedRank rank(false, {}, LateWrites::logged);
  support::CapturedStderr captured;
  for (int step = 0; step < 3; ++step) {
    Step open = rank.begun_pass();
    rank.write(2, 8.0F);
    open.finish();
    CHECK(rank.read(2) == 30.0F);
  }
  CHECK_FALSE(rank.latch->failed());
  CHECK_CONTAINS(captured.text(), sentence, "if that is part of the gradient, call ready(i) once", "check_ready");
  CHECK(captured.text().find("changed after") == captured.text().rfind("changed after"));
  CheckedRank bound(true, {}, LateWrites::logged);
  Step open = bound.reducer->begin();
  open.ready(2);
  bound.write(2, 8.0F);
  for (const std::size_t i : {3U, 1U, 0U})
    open.ready(i);
  CHECK_ERROR(open.finish(), Errc::invalid_argument, sentence);
}

TEST_CASE("without the check such a gradient is lost without a word") {
  FakeRank rank({20, 3});
  Step step = rank.reducer->begin();
  step.ready(0);
  step.ready(1);
  rank.write(1, 8.0F);
  step.finish();
  CHECK(rank.read(1) == 0.0F);
}

TEST_CASE("a bound gradient is compared before its bucket is reduced, and where it was reduced") {
  CheckedRank rank(true);
  Step early = rank.reducer->begin();
  early.ready(2);  // waits for bucket 3
  rank.write(2, 8.0F);
  for (const std::size_t i : {3U, 1U, 0U})
    early.ready(i);
  CHECK_ERROR(early.finish(), Errc::invalid_argument, sentence);
}

TEST_CASE("a gradient in other memory is copied by ready(), and not compared") {
  for (const bool binds : {false, true}) {
    CAPTURE(binds);
    CheckedRank rank(binds);
    Step step = rank.reducer->begin();
    std::vector<float> elsewhere(100, 4.0F);
    step.ready(2, tensor_view(elsewhere));
    elsewhere.assign(100, 9.0F);
    for (const std::size_t i : {3U, 1U, 0U})
      step.ready(i);
    step.finish();
    CHECK(rank.read(2) == 40.0F);
  }
}

TEST_CASE("parameters without ready() are not compared") {
  CheckedRank rank(false, {.allow_unused_parameters = true});
  rank.begun_pass().finish();
  for (int repeat = 0; repeat < 2; ++repeat) {
    Step step = rank.reducer->begin();
    rank.write(2, 8.0F);
    step.ready(1);
    rank.write(2, 9.0F);
    step.finish();
    CHECK(rank.read(2) == 0.0F);
  }
}

TEST_CASE("gradients that lose their memory after a pass under no_sync are not read in the next one") {
  CheckedRank rank(false);
  Accumulation accumulation = rank.reducer->accumulation();
  rank.held_pass(accumulation);
  rank.reducer->reuse_memory(true);  // as a libtorch::ShardedOptimizer of stage 2
  accumulation.begin().finish();
}

TEST_CASE("passes that the program discards on purpose are no warning") {
  CheckedRank rank(false);
  Accumulation accumulation = rank.reducer->accumulation();
  support::CapturedStderr captured;
  rank.held_pass(accumulation);
  rank.reducer->discard_accumulated();
  rank.write(2, 0.0F);
  rank.begun_pass().finish();
  CHECK(captured.text() == "");
}

TEST_CASE("a gradient that is cleared between passes under no_sync is a warning, once") {
  CheckedRank rank(false);
  Accumulation accumulation = rank.reducer->accumulation();
  support::CapturedStderr captured;
  for (int round = 0; round < 2; ++round) {
    rank.held_pass(accumulation);
    rank.begun_pass().finish();
  }
  CHECK(captured.text() == "");
  for (int round = 0; round < 2; ++round) {
    rank.held_pass(accumulation);
    rank.write(1, 0.0F);  // three elements may be zeros after a sum
    rank.begun_pass().finish();
  }
  CHECK(captured.text() == "");
  for (int round = 0; round < 2; ++round) {
    rank.held_pass(accumulation);
    rank.write(2, 0.0F);
    rank.begun_pass().finish();
  }
  CHECK_CONTAINS(captured.text(), "the gradient of parameter 2 'p2' was cleared after a pass under no_sync()",
                 "no_sync(dtrain::Adds::wrapper)");
  CHECK(captured.text().find("cleared") == captured.text().rfind("was cleared") + 4);  // once
}
