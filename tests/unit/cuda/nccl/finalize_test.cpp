#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

bool none_is_left_behind() {
  return support::holds_soon([] { return AbandonedThreads::count() == 0; });
}

}  // namespace

TEST_CASE("two channels that the ranks of a node close in different orders end within 10 s, and NCCL follows") {
  bool is_split = false;
  SUBCASE("each initialised by itself") {}
  SUBCASE("one opened from the other") {
    is_split = true;
  }
  emulation::reset();
  emulation::set_device_count(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(
      2,
      [&](RankThread& thread) {
        std::optional<NcclRank> one(std::in_place, job, thread.rank(), 2, "one");
        std::optional<NcclRank> other;
        if (is_split) {
          const auto context = support::channel_context(job, thread.rank(), 2, "other");
          other.emplace(one->latch,
                        dtrain::backend::Nccl::duplicate_blocking(one->communicator, context, Deadline::after(60s)));
        } else {
          other.emplace(job, thread.rank(), 2, "other");
        }
        auto& first = thread.rank() == 0 ? one : other;
        auto& second = thread.rank() == 0 ? other : one;
        const auto began = Deadline::Clock::now();
        thread.doing("closing the first");
        first.reset();
        thread.doing("closing the second");
        second.reset();
        CHECK(Deadline::Clock::now() - began < 16s);
        CHECK(!job->latch(thread.rank())->failed());
      },
      60s);
  CHECK(none_is_left_behind());
  CHECK(emulation::concurrent_calls() == 0);
}

TEST_CASE("a rank that leaves waits for 10 s for the others of the node, and for 1 s with its next channels") {
  emulation::reset();
  emulation::set_device_count(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<bool> has_left{false};
  run_thread_ranks(
      2,
      [&](RankThread& thread) {
        std::optional<NcclRank> channels[3];
        for (int i = 0; i < 3; ++i)
          channels[i].emplace(job, thread.rank(), 2, "channel " + std::to_string(i));
        if (thread.rank() == 1) {
          const auto began = Deadline::Clock::now();
          for (auto& channel : channels)
            channel.reset();
          CHECK(Deadline::Clock::now() - began < 20s);
          CHECK(AbandonedThreads::count() == 6);  // each has a root
          has_left = true;
        }
        CHECK(support::holds_soon([&] { return has_left.load(); }, 50s));
      },
      60s);
  CHECK(none_is_left_behind());
}

#endif  // DTRAIN_EMULATED_CUDA
