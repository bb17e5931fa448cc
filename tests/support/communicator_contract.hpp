#pragma once
/// @file
/// The conformance suite of communicators: COMMUNICATOR_CONTRACT(Rank) makes its test cases for one backend. Its ranks
/// are threads, or what Rank::World runs them as: then each process runs all cases, and of each job the ranks that it
/// has. A Rank has put(values), get(memory), wait(), latch, stream and communicator, as HostRank does.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/operations.hpp"
#include "dtrain/stream/stream.hpp"
#include "support/block_checks.hpp"
#include "support/channel_context.hpp"
#include "support/collective_checks.hpp"
#include "support/expect_error.hpp"
#include "support/sanitized.hpp"

namespace support {
struct MpiRank;
struct NcclRank;
template <class Inner>
struct StagedRank;
}  // namespace support

namespace communicator_contract {

using dtrain::BufferView;
using dtrain::Cause;
using dtrain::CauseKind;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::Errc;
using dtrain::ReduceOp;
using dtrain::backend::AllGather;
using dtrain::backend::AllReduce;
using dtrain::backend::Barrier;
using dtrain::backend::Broadcast;
using dtrain::backend::Recv;
using dtrain::backend::ReduceScatter;
using dtrain::backend::Send;
using dtrain::backend::SendRecv;
using support::RankThread;
using support::World;
using namespace std::chrono_literals;

/// "group" is the channel of a job's ranks, of which backend::Staged asks whether they share a device.
inline constexpr const char* channel_name = "contract";

/// What a backend promises. The specialisations below say in what others differ by design, and why.
template <class Rank>
struct Promises {
  static constexpr int most_ranks = 8;
  static bool reduces(DType, ReduceOp, int) { return true; }
  /// Every operation carries its description to the other ranks.
  static constexpr bool compares_arguments = true;
  /// A communicator that ends skips what has not run.
  static constexpr bool drops_work = true;
  /// Waiting ranks hear at once that a rank has left.
  static constexpr std::chrono::nanoseconds patience_with_leavers = 1h;
  static constexpr std::chrono::nanoseconds timeout = 300ms;
  static constexpr bool is_on_host = true;
  /// Rank 0's opening ends only when the other ranks open, too.
  static constexpr bool rank_0_waits_to_open = true;
};

/// A rank of the tests has a fixed piece of device memory: more ranks would need more of it.
template <class Inner>
struct Promises<support::StagedRank<Inner>> : Promises<void> {
  static constexpr int most_ranks = 4;
  static constexpr bool is_on_host = false;
};

/// A process for each rank, of which this machine need not run more at once. MPI itself has connected the ranks: only
/// the tags of a channel are exchanged, which rank 0 chooses alone.
template <>
struct Promises<support::MpiRank> : Promises<void> {
  static constexpr int most_ranks = 5;
  static constexpr bool rank_0_waits_to_open = false;
};

/// NCCL compares nothing: ranks tell each other what they are in when one is late. It runs what it has got, and says
/// only after the timeout that a rank is not there. Its averages multiply by 1 / ranks before they sum, and those of
/// integers would be wrong.
template <>
struct Promises<support::NcclRank> : Promises<void> {
  static bool reduces(DType dtype, ReduceOp op, int ranks) {
    return op != ReduceOp::average || (ranks != 3 && ranks != 5 && is_float(dtype));
  }
  static constexpr bool compares_arguments = false;
  static constexpr bool drops_work = false;
  static constexpr std::chrono::nanoseconds patience_with_leavers = 4s;
  static constexpr std::chrono::nanoseconds timeout = 2s;
  static constexpr bool is_on_host = false;
};

/// Runs `body` on so many ranks, if this machine has what they need.
template <class Rank>
void run(const support::Ranks& ranks, const std::function<void(Rank&, RankThread&)>& body) {
  if constexpr (requires { Rank::can_run(ranks.count); }) {
    if (!Rank::can_run(ranks.count)) return;
  }
  support::run_ranks<Rank>(ranks, body);
}

/// Runs `body` on all numbers of ranks that the backend takes.
template <class Rank>
void run_all(const std::function<void(Rank&, RankThread&)>& body) {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    if (ranks <= Promises<Rank>::most_ranks) run<Rank>({ranks, channel_name, 20s}, body);
  }
}

/// Where the ranks of a test wait for each other, whatever becomes of their job. Threads: any.
template <class Rank>
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks), job_(std::make_shared<Job>(ranks)) {}

  void announce(const std::string& event) { store().set(event, "").wait(); }

  /// Blocking: until a rank has announced it. @throws Error (timeout)
  void await(const std::string& event) { store().get(event, Deadline::after(60s)).wait(); }

  /// Blocking: until all ranks have come to this point. @throws Error (timeout)
  void arrive_and_wait(const RankThread& thread) {
    announce("arrived/" + std::to_string(thread.rank()));
    for (int rank = 0; rank < ranks_; ++rank)
      await("arrived/" + std::to_string(rank));
  }

 private:
  using Job = typename World<Rank>::Job;
  typename Job::Store store() { return {job_, 0}; }

  int ranks_;
  std::shared_ptr<Job> job_;
};

/// Runs `body` when all ranks have opened their channels: then no opening hears of a failure. NCCL connects ranks in
/// their first collective, whose call waits for the other ones; its timeout begins when all are there.
template <class Rank>
void run_opened(const support::Ranks& ranks, const std::function<void(Rank&, RankThread&)>& body,
                bool connects = true) {
  Meeting<Rank> opened(ranks.count);
  Meeting<Rank> connected(ranks.count);
  run<Rank>(ranks, [&](Rank& self, RankThread& thread) {
    thread.doing("waiting for the other ranks' openings");
    opened.arrive_and_wait(thread);
    if constexpr (requires { self.connect(); }) {
      if (connects) self.connect();
      connected.arrive_and_wait(thread);
    }
    body(self, thread);
  });
}

/// Device memory of a test that its next part may use.
template <class Rank>
void forget(Rank& self) {
  if constexpr (requires { self.forget(); }) self.forget();
}

/// Runs `body` with threads that drain the streams of host backends, and without.
template <class Rank, class Body>
void with_helper_or_without(Body body) {
  body(false);
  if constexpr (Promises<Rank>::is_on_host) body(true);
}
template <class Stream>
void start_helper([[maybe_unused]] Stream& stream, [[maybe_unused]] bool helper) {
  if constexpr (requires { stream.start_helper(); }) {
    if (helper) stream.start_helper();
  }
}

/// Of a channel that may fail: a call of NCCL's that waits for the other ranks itself throws why.
template <class Rank, class Memory>
void all_reduce(Rank& self, Memory& memory, ReduceOp op = ReduceOp::sum) {
  static_cast<void>(support::error_of([&] {
    self.communicator.enqueue(AllReduce{memory.view(), memory.view(), op}, self.stream.ref());
  }));
}

/// Blocking: whether the stream has run what it holds, be that failed.
template <class Stream>
bool drains(const Stream& stream) {
  typename Stream::Event event;
  stream.record(event);
  return event.block_until_complete(Deadline::after(60s)) == dtrain::stream::WaitResult::complete;
}

/// Blocking: what the job failed of, as this rank hears it.
template <class Rank>
Cause cause_on(const Rank& self) {
  REQUIRE(self.latch->block_until_failed(Deadline::after(60s)));
  return self.latch->cause().value();
}

template <class Rank>
void reductions() {
  run_all<Rank>([](Rank& self, RankThread& thread) {
    for (const std::size_t count : {1U, 99U, 4099U, 30'001U}) {
      forget(self);
      support::check_reductions(
          self, {count}, [&](DType dtype, ReduceOp op) { return Promises<Rank>::reduces(dtype, op, thread.size()); });
    }
    // Some megabytes, of widths that do not divide a chunk as four bytes do.
    const auto sum_is_right = [&](auto element, std::size_t count) {
      using T = decltype(element);
      const int ranks = thread.size();
      auto memory = self.put(std::vector<T>(count, static_cast<T>(thread.rank() + 1)));
      self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
      return self.wait() &&
             self.template get<T>(memory) == std::vector<T>(count, static_cast<T>(ranks * (ranks + 1) / 2));
    };
    if (Promises<Rank>::reduces(DType::f64, ReduceOp::sum, thread.size())) CHECK(sum_is_right(double{}, 200'001));
    if (Promises<Rank>::reduces(DType::u8, ReduceOp::sum, thread.size())) {
      CHECK(sum_is_right(std::uint8_t{}, 3'000'001));
    }
  });
}

template <class Rank>
void moves() {
  run_all<Rank>([](Rank& self, RankThread&) {
    for (const std::size_t count : {0U, 7U, 10'003U, 100'003U}) {
      forget(self);
      support::check_moves(self, {count});
    }
  });
}

template <class Rank>
void blocks() {
  run_all<Rank>([](Rank& self, RankThread&) {
    for (const std::size_t scale : {0U, 7U, 3000U, 300'001U}) {
      forget(self);
      support::check_blocks(self, {scale});
    }
  });
}

/// What an operation's memory is: the same for both sides, other, or a rank's block of the whole.
template <class Rank>
void places() {
  run_all<Rank>([](Rank& self, RankThread& thread) {
    using Values = std::vector<std::int32_t>;
    const auto size = static_cast<std::size_t>(thread.size());
    const auto rank = static_cast<std::size_t>(thread.rank());
    for (const std::size_t count : {0U, 1U, 5001U}) {
      forget(self);
      auto input = self.put(support::numbers(count, thread.rank()));
      auto output = self.put(Values(count));
      self.communicator.enqueue(AllReduce{input.view(), output.view(), ReduceOp::max}, self.stream.ref());
      auto whole = self.put(Values(size * count, thread.rank()));
      BufferView own = whole.view();
      own.data += rank * count * sizeof(std::int32_t);
      own.count = count;
      self.communicator.enqueue(ReduceScatter{whole.view(), own, ReduceOp::sum}, self.stream.ref());
      self.communicator.enqueue(AllGather{own, whole.view()}, self.stream.ref());
      CHECK(self.wait());
      CHECK(self.template get<std::int32_t>(input) == support::numbers(count, thread.rank()));
      CHECK(self.template get<std::int32_t>(output) == support::numbers(count, thread.size() - 1));
      CHECK(self.template get<std::int32_t>(whole) == Values(size * count, thread.size() * (thread.size() - 1) / 2));
    }
  });
}

/// One of several ranks calls something else than an all_reduce of 100 floats.
template <class Rank>
void disagreements(const std::vector<int>& rank_counts = {2, 3, 5}) {
  struct Call {
    const char* says;
    bool is_other_kind;
    void (*make)(Rank&, BufferView);
  };
  const Call calls[] = {
      {"broadcast of 100 f32 from rank 0", true,
       [](Rank& self, BufferView view) {
         self.communicator.enqueue(Broadcast{view, 0}, self.stream.ref());
       }},
      {"called barrier", true, [](Rank& self, BufferView) { self.communicator.enqueue(Barrier{}, self.stream.ref()); }},
      {"all_reduce (sum) of 99 f32", false,
       [](Rank& self, BufferView view) {
         view.count = 99;
         self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
       }},
      {"all_reduce (max) of 100 f32", false,
       [](Rank& self, BufferView view) {
         self.communicator.enqueue(AllReduce{view, view, ReduceOp::max}, self.stream.ref());
       }},
      {"all_reduce (sum) of 90000 f32", false, [](Rank& self, BufferView view) {
         view.count = 90'000;
         self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
       }}};
  for (const int ranks : rank_counts) {
    for (const int other : {0, ranks - 1}) {
      for (const Call& call : calls) {
        for (const bool is_first : {true, false}) {
          if (!Promises<Rank>::compares_arguments && (!call.is_other_kind || ranks > 3)) continue;
          Meeting<Rank> together(ranks);
          const auto body = [&](Rank& self, RankThread& thread) {
            CAPTURE(ranks);
            CAPTURE(other);
            CAPTURE(call.says);
            CAPTURE(is_first);
            auto memory = self.put(std::vector<float>(90'000));
            BufferView view = memory.view();
            view.count = 100;
            if (!is_first) {
              self.communicator.enqueue(Barrier{}, self.stream.ref());
              CHECK(self.wait());
              together.arrive_and_wait(thread);
            }
            if constexpr (requires { self.compares_when_all_are_late(ranks); }) self.compares_when_all_are_late(ranks);
            static_cast<void>(support::error_of([&] {  // NCCL's first call throws
              if (thread.rank() == other) {
                call.make(self, view);
              } else {
                self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
              }
            }));
            CHECK_FALSE(self.wait());
            const Cause cause = cause_on(self);
            CHECK(cause.kind == CauseKind::disagreement);
            CHECK_CONTAINS(cause.text, "all_reduce (sum) of 100 f32", call.says, "rank " + std::to_string(other),
                           "channel 'contract'");
          };
          run_opened<Rank>({ranks, channel_name, Promises<Rank>::compares_arguments ? 60s : Promises<Rank>::timeout},
                           body, !is_first);
        }
      }
    }
  }
}

template <class Rank>
void timeouts() {
  Meeting<Rank> meeting(2);
  run_opened<Rank>({2, channel_name, Promises<Rank>::timeout}, [&](Rank& self, RankThread& thread) {
    if (thread.rank() == 1) {
      meeting.await("ended");
      CHECK(cause_on(self).kind == CauseKind::timeout);
      return;
    }
    // No longer than a chunk of backend::Staged: the sentence is that of its inner channel, which reduces chunks.
    auto memory = self.put(std::vector<float>(250'000));
    const auto began = Deadline::Clock::now();
    all_reduce(self, memory);
    CHECK_FALSE(self.wait());
    CHECK(Deadline::Clock::now() - began < (support::is_sanitized ? 20s : 8s));
    meeting.announce("ended");
    const Cause cause = self.communicator.failure().value();
    CHECK(cause.kind == CauseKind::timeout);
    CHECK(cause.rank == 0);
    CHECK_CONTAINS(cause.text, "all_reduce (sum) of 250000 f32", "channel 'contract'", "rank 1");
  });
}

template <class Rank>
void aborts() {
  with_helper_or_without<Rank>([](bool helper) {
    Meeting<Rank> meeting(2);
    run_opened<Rank>({2, channel_name, 1h}, [&](Rank& self, RankThread& thread) {
      start_helper(self.stream, helper);
      if (thread.rank() == 1) {
        meeting.await("ended");
        return;
      }
      auto memory = self.put(std::vector<float>(300'000));
      std::thread aborter([&] {
        std::this_thread::sleep_for(30ms);
        self.communicator.abort({CauseKind::exception, 0, "here", "enough"});
      });
      all_reduce(self, memory);
      CHECK_FALSE(self.wait());
      aborter.join();
      meeting.announce("ended");
      CHECK(self.communicator.failure().value().text == "enough");
      all_reduce(self, memory);  // later work ends at once
      CHECK_FALSE(self.wait());
    });
  });
}

/// The job's failure reaches a call that waits, an opening, and an opening that begins later.
template <class Rank>
void job_failures() {
  const Cause lost{CauseKind::lost, 1, "elsewhere", "its connection closed"};
  if constexpr (requires { Rank::can_run(2); }) {
    if (!Rank::can_run(2)) return;
  }
  const auto job = std::make_shared<typename World<Rank>::Job>(2);
  Meeting<Rank> opened(2);
  World<Rank>::run(2, [&](RankThread& thread) {
    Rank self(job, thread.rank(), 2, channel_name, 1h);
    if constexpr (requires { self.connect(); }) self.connect();
    opened.arrive_and_wait(thread);
    if (thread.rank() == 0) {
      auto memory = self.put(std::vector<float>(3'000'000));
      std::thread control([&] {
        std::this_thread::sleep_for(20ms);
        job->fail(lost);
      });
      all_reduce(self, memory);
      CHECK_FALSE(self.wait());
      control.join();
      CHECK(self.communicator.failure().value().kind == CauseKind::lost);
      CHECK(self.communicator.failure().value().text == lost.text);
      CHECK_ERROR(self.communicator.allocate_blocking(64, Deadline::after(60s)), Errc::peer_lost);
      all_reduce(self, memory);
      CHECK_FALSE(self.wait());
    } else {
      CHECK(cause_on(self).kind == CauseKind::lost);
    }
    CHECK_ERROR(Rank(job, thread.rank(), 2, "late"), Errc::peer_lost);
  });
  for (const int opening : {0, 1}) {
    if (opening == 0 && !Promises<Rank>::rank_0_waits_to_open) continue;
    const auto unopened = std::make_shared<typename World<Rank>::Job>(2);
    World<Rank>::run(2, [&](RankThread& thread) {
      if (thread.rank() != opening) return;  // never comes
      std::thread control([&] {
        std::this_thread::sleep_for(20ms);
        unopened->fail(lost);
      });
      const auto began = Deadline::Clock::now();
      CHECK_ERROR(Rank(unopened, opening, 2), Errc::peer_lost);
      CHECK(Deadline::Clock::now() - began < (support::is_sanitized ? 20s : 8s));
      control.join();
    });
  }
}

/// A communicator ends before its work has run, and the stream goes on.
template <class Rank>
void ends_early() {
  with_helper_or_without<Rank>([](bool helper) {
    run_opened<Rank>({2, channel_name, 1h}, [&](Rank& self, RankThread& thread) {
      start_helper(self.stream, helper);
      auto memory = self.put(std::vector<float>(300'000, 1));
      {
        auto ending = std::move(self.communicator);
        if (thread.rank() == 0 || !Promises<Rank>::drops_work) {
          for (int i = 0; i < 3; ++i)
            ending.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
        } else {
          self.latch->block_until_failed(Deadline::after(200ms));
        }
      }
      CHECK(drains(self.stream.ref()));
      if (!Promises<Rank>::drops_work) {
        CHECK(self.template get<float>(memory) == std::vector<float>(300'000, 8));
        CHECK_FALSE(self.latch->failed());
      }
    });
  });
}

template <class Rank>
void leavers() {
  run_opened<Rank>({2, channel_name, Promises<Rank>::patience_with_leavers}, [](Rank& self, RankThread& thread) {
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    CHECK(self.wait());
    if (thread.rank() == 1) return;
    auto memory = self.put(std::vector<float>(300'000));
    all_reduce(self, memory);
    CHECK_FALSE(self.wait());
    CHECK_CONTAINS(self.communicator.failure().value().text, "rank 1", "left the channel");
  });
}

/// Sums of numbers in the parts, in parts of parts and in the whole.
template <class Rank>
void splits() {
  run_all<Rank>([](Rank& self, RankThread& thread) {
    const int color = thread.rank() % 2;
    const int members = (thread.size() + 1 - color) / 2;
    const auto sum_is = [&](auto& communicator, int expected) {
      auto number = self.put(std::vector<std::int32_t>{thread.rank()});
      communicator.enqueue(AllReduce{number.view(), number.view(), ReduceOp::sum}, self.stream.ref());
      return self.wait() && !communicator.failure() && self.template get<std::int32_t>(number)[0] == expected;
    };
    thread.doing("splitting");
    auto part = self.communicator.split_blocking(color, -thread.rank(), Deadline::after(60s));
    CHECK(part.size() == members);
    CHECK(part.rank() == members - 1 - thread.rank() / 2);  // the key turns the order round
    CHECK(sum_is(part, members * (members - 1) + color * members));
    CHECK(sum_is(self.communicator, thread.size() * (thread.size() - 1) / 2));
    thread.doing("splitting a part");
    auto alone = part.split_blocking(part.rank(), 0, Deadline::after(60s));
    CHECK(alone.size() == 1);
    CHECK(sum_is(alone, thread.rank()));
    CHECK(sum_is(part, members * (members - 1) + color * members));
    CHECK_ERROR(self.communicator.split_blocking(-1, 0, Deadline::after(1s)), Errc::invalid_argument,
                "colors begin at 0");
    thread.doing("splitting while work is enqueued");
    auto busy = self.put(std::vector<float>(250'000, 1));
    self.communicator.enqueue(AllReduce{busy.view(), busy.view(), ReduceOp::sum}, self.stream.ref());
    auto again = self.communicator.split_blocking(7, 0, Deadline::after(60s));
    CHECK(again.rank() == thread.rank());
    CHECK(sum_is(again, thread.size() * (thread.size() - 1) / 2));
    CHECK(self.template get<float>(busy) == std::vector<float>(250'000, static_cast<float>(thread.size())));
  });
}

/// A rank does not come to a split; what fails in a part has the rank's number in the job.
template <class Rank>
void failures_of_parts() {
  Meeting<Rank> split(2);
  run_opened<Rank>({2, channel_name, Promises<Rank>::timeout}, [&](Rank& self, RankThread& thread) {
    auto pair = self.communicator.split_blocking(0, -thread.rank(), Deadline::after(60s));
    CHECK(pair.rank() == 1 - thread.rank());
    split.arrive_and_wait(thread);  // no split hears of the failure
    if (thread.rank() == 1) {       // rank 0 of the pair
      static_cast<void>(support::error_of([&] { pair.enqueue(Barrier{}, self.stream.ref()); }));
      CHECK(drains(self.stream.ref()));
      REQUIRE(pair.failure());
      CHECK(pair.failure()->rank == 1);
    }
    CHECK(cause_on(self).rank == 1);
  });
  Meeting<Rank> meeting(2);
  run_opened<Rank>(2, [&](Rank& self, RankThread& thread) {
    if (thread.rank() == 0) {
      CHECK_THROWS_AS(self.communicator.split_blocking(0, 0, Deadline::after(500ms)), dtrain::Error);
      meeting.announce("ended");
    }
    meeting.await("ended");
  });
}

/// Each rank finishes two channels in another order: with a common one, none would end.
template <class Rank>
void crossed_channels() {
  const auto job = std::make_shared<typename World<Rank>::Job>(2);
  World<Rank>::run(2, [&](RankThread& thread) {
    Rank first(job, thread.rank(), 2, "first");
    Rank second(job, thread.rank(), 2, "second");
    auto a = first.put(std::vector<float>(5000, 1));
    auto b = second.put(std::vector<float>(5000, 2));
    if (thread.rank() == 0) {
      all_reduce(first, a);
      all_reduce(second, b);
      std::thread other([&] { CHECK(first.wait()); });
      CHECK(second.wait());
      other.join();
    } else {
      all_reduce(second, b);
      CHECK(second.wait());
      all_reduce(first, a);
      CHECK(first.wait());
    }
    CHECK(first.template get<float>(a) == std::vector<float>(5000, 2));
    CHECK(second.template get<float>(b) == std::vector<float>(5000, 4));
  });
}

template <class Rank>
void overtaking_streams() {
  run<Rank>(1, [](Rank& self, RankThread&) {
    decltype(self.stream) other;
    self.communicator.enqueue(Barrier{}, other.ref());
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    CHECK_FALSE(self.wait());
    CHECK_CONTAINS(self.communicator.failure().value().text, "began before the one enqueued before it");
  });
}

/// Floats of 8 bits are carried whatever their bits mean, and not reduced.
template <class Rank>
void short_floats() {
  for (const int ranks : {1, 2, 3}) {
    run<Rank>(ranks, [](Rank& self, RankThread& thread) {
      std::vector<std::byte> all_bits(256);
      for (std::size_t i = 0; i < all_bits.size(); ++i)
        all_bits[i] = static_cast<std::byte>(i);
      const int size = thread.size();
      auto sent = self.put(thread.rank() == 0 ? all_bits : std::vector<std::byte>(256), DType::f8e4m3);
      auto gathered = self.put(std::vector<std::byte>(256 * static_cast<std::size_t>(size)), DType::f8e4m3);
      auto passed = self.put(std::vector<std::byte>(256), DType::f8e4m3);
      const std::string why =
          " f8e4m3: floats of 8 bits can be moved, and not reduced, because they have too few digits for a sum or an "
          "average; reduce them as f16, bf16 or f32";
      CHECK_ERROR(self.communicator.enqueue(AllReduce{sent.view(), passed.view(), ReduceOp::sum}, self.stream.ref()),
                  Errc::unsupported, "all_reduce of 256" + why);
      CHECK_ERROR(
          self.communicator.enqueue(ReduceScatter{gathered.view(), sent.view(), ReduceOp::average}, self.stream.ref()),
          Errc::unsupported, "reduce_scatter of 256" + why);
      self.communicator.enqueue(Broadcast{sent.view(), 0}, self.stream.ref());
      self.communicator.enqueue(AllGather{sent.view(), gathered.view()}, self.stream.ref());
      self.communicator.enqueue(
          SendRecv{sent.view(), (thread.rank() + 1) % size, passed.view(), (thread.rank() + size - 1) % size},
          self.stream.ref());
      CHECK(self.wait());
      CHECK(self.template get<std::byte>(sent) == all_bits);
      CHECK(self.template get<std::byte>(passed) == all_bits);
      const std::vector<std::byte> whole = self.template get<std::byte>(gathered);
      CHECK(std::vector<std::byte>(whole.end() - 256, whole.end()) == all_bits);
    });
  }
}

/// What a caller can know to be wrong throws at the call, which does not count as an operation.
template <class Rank>
void wrong_arguments() {
  run<Rank>(1, [](Rank& self, RankThread&) {
    auto& communicator = self.communicator;
    const auto stream = self.stream.ref();
    auto memory = self.put(std::vector<float>(16));
    BufferView whole = memory.view();
    whole.count = 8;
    BufferView overlapping = whole;
    overlapping.data += 4;
    BufferView shorter = whole;
    shorter.count = 7;
    BufferView null = whole;
    null.data = nullptr;
    BufferView elsewhere = whole;
    elsewhere.device = Promises<Rank>::is_on_host ? dtrain::Device{dtrain::DeviceKind::cuda, 0} : dtrain::Device{};
    CHECK_ERROR(communicator.enqueue(AllReduce{whole, overlapping, ReduceOp::sum}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(AllReduce{whole, shorter, ReduceOp::sum}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(AllReduce{null, null, ReduceOp::sum}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(AllReduce{elsewhere, elsewhere, ReduceOp::sum}, stream), Errc::unsupported);
    CHECK_ERROR(communicator.enqueue(ReduceScatter{whole, shorter, ReduceOp::sum}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(AllGather{whole, overlapping}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(Send{whole, 1}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(Send{whole, 0}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(Recv{whole, 0}, stream), Errc::invalid_argument, "a peer is another rank");
    CHECK_ERROR(communicator.enqueue(SendRecv{whole, 0, overlapping, 0}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(Broadcast{whole, 1}, stream), Errc::invalid_argument);
    CHECK_ERROR(communicator.enqueue(Broadcast{whole, -1}, stream), Errc::invalid_argument);
    communicator.enqueue(AllReduce{whole, whole, ReduceOp::sum}, stream);
    CHECK(self.wait());
  });
}

/// Of a host backend. @param allocations as allocation_count.hpp counts them
template <class Rank>
void steady_state(const std::atomic<std::size_t>& allocations) {
  run<Rank>(2, [&](Rank& self, RankThread&) {
    const auto arena = self.communicator.allocate_blocking(80'000, Deadline::after(60s));
    auto foreign = self.put(std::vector<float>(20'000, 1));
    const BufferView views[] = {
        {arena.data(), 20'000, DType::f32, {}}, foreign.view(), {arena.data(), 16, DType::f32, {}}};
    const auto step = [&] {
      for (const BufferView& view : views) {
        self.communicator.enqueue(AllReduce{view, view, ReduceOp::average}, self.stream.ref());
        self.communicator.enqueue(Broadcast{view, 0}, self.stream.ref());
      }
      self.communicator.enqueue(Barrier{}, self.stream.ref());
      self.wait();
    };
    step();
    step();  // after its barrier no rank is opening any more
    const std::size_t before = allocations.load();
    for (int i = 0; i < 50; ++i)
      step();
    const std::size_t after = allocations.load();
    step();  // no rank has begun to end
    CHECK(after == before);
  });
}

}  // namespace communicator_contract

/// What the communicators of a backend do, for the test file that has this line.
#define COMMUNICATOR_CONTRACT(Rank)                                                                           \
  TEST_CASE("every element type and operation is reduced, to the same values on all ranks") {                 \
    communicator_contract::reductions<Rank>();                                                                \
  }                                                                                                           \
  TEST_CASE("every other collective moves its elements, and every message, none or many") {                   \
    communicator_contract::moves<Rank>();                                                                     \
  }                                                                                                           \
  TEST_CASE("blocks of any lengths are exchanged and reduced") {                                              \
    communicator_contract::blocks<Rank>();                                                                    \
  }                                                                                                           \
  TEST_CASE("operations take other memory for their results, and their own") {                                \
    communicator_contract::places<Rank>();                                                                    \
  }                                                                                                           \
  TEST_CASE("a split gives each color a channel of its own, also a split of a split, beside the first one") { \
    communicator_contract::splits<Rank>();                                                                    \
  }                                                                                                           \
  TEST_CASE("floats of 8 bits are carried, and a reduction of them is refused at the call") {                 \
    communicator_contract::short_floats<Rank>();                                                              \
  }                                                                                                           \
  TEST_CASE("what a caller can know to be wrong throws at the call, and the channel serves on") {             \
    communicator_contract::wrong_arguments<Rank>();                                                           \
  }

/// How they fail.
#define COMMUNICATOR_FAILURE_CONTRACT(Rank)                                                                  \
  TEST_CASE("ranks that call different things learn which two differ and in what") {                         \
    communicator_contract::disagreements<Rank>();                                                            \
  }                                                                                                          \
  TEST_CASE("a rank that does not come is waited for until the timeout, and named") {                        \
    communicator_contract::timeouts<Rank>();                                                                 \
  }                                                                                                          \
  TEST_CASE("an abort from another thread ends a wait at once, with its cause") {                            \
    communicator_contract::aborts<Rank>();                                                                   \
  }                                                                                                          \
  TEST_CASE("the job's failure reaches a call that waits, and every opening") {                              \
    communicator_contract::job_failures<Rank>();                                                             \
  }                                                                                                          \
  TEST_CASE("a communicator that is destroyed before its work has run lets the stream go on") {              \
    communicator_contract::ends_early<Rank>();                                                               \
  }                                                                                                          \
  TEST_CASE("a rank that has left the channel is named") {                                                   \
    communicator_contract::leavers<Rank>();                                                                  \
  }                                                                                                          \
  TEST_CASE("a failure of a part has the rank's number in the job, and nobody waits for ever for a split") { \
    communicator_contract::failures_of_parts<Rank>();                                                        \
  }

/// Not of NCCL, which runs what its communicators of a device have got in the order of the calls.
#define CROSSED_CHANNELS_CONTRACT(Rank)                                         \
  TEST_CASE("two channels whose operations cross do not wait for each other") { \
    communicator_contract::crossed_channels<Rank>();                            \
  }

/// How operations on two streams fail that run only while a thread waits for them or drains them.
#define HOST_STREAM_CONTRACT(Rank)                                                                  \
  TEST_CASE("operations that overtake each other on two streams are an error, not wrong numbers") { \
    communicator_contract::overtaking_streams<Rank>();                                              \
  }
