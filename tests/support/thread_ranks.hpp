#pragma once
/// @file
/// Ranks as threads of the test, under a watchdog that names who hangs and where.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/sanitized.hpp"

namespace support {

/// One of the ranks; `doing` is what the watchdog prints when it never comes back.
class RankThread {
 public:
  RankThread(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// A literal. Threads: set by the rank, read by the watchdog.
  void doing(const char* what) { doing_.store(what); }
  const char* doing() const { return doing_.load(); }

 private:
  int rank_;
  int size_;
  std::atomic<const char*> doing_{"starting"};
};

/// Aborts the process with a message unless it is destroyed before `patience` has passed (tenfold under
/// ThreadSanitizer, fivefold under AddressSanitizer).
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds patience, std::function<void()> complain)
      : thread_([this, patience, complain = std::move(complain)] {
          std::unique_lock lock(mutex_);
          const int scale = DTRAIN_THREAD_SANITIZER ? 10 : is_sanitized ? 5 : 1;
          if (!changed_.wait_for(lock, scale * patience, [this] { return done_; })) {
            complain();
            std::fflush(nullptr);
            std::abort();
          }
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

/// Real devices take longer for their first context and for NCCL's first communicator.
#if DTRAIN_WITH_CUDA && !DTRAIN_EMULATED_CUDA
inline constexpr std::chrono::seconds patience_with_ranks{180};
#else
inline constexpr std::chrono::seconds patience_with_ranks{120};
#endif

/// Runs `body(RankThread&)` on `ranks` threads at once and returns when all have ended. What a rank throws is thrown
/// here, the lowest rank's first. Like all that runs ranks it is no template, which would be compiled again for each of
/// hundreds of bodies.
inline void run_thread_ranks(int ranks, const std::function<void(RankThread&)>& body,
                             std::chrono::milliseconds patience = patience_with_ranks) {
  std::vector<std::unique_ptr<RankThread>> selves;
  for (int rank = 0; rank < ranks; ++rank)
    selves.push_back(std::make_unique<RankThread>(rank, ranks));
  std::vector<std::atomic<bool>> ended(static_cast<std::size_t>(ranks));
  const Watchdog watchdog(patience, [&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!ended[static_cast<std::size_t>(rank)].load()) {
        std::fprintf(stderr, "watchdog: rank %d of %d hangs in: %s\n", rank, ranks,
                     selves[static_cast<std::size_t>(rank)]->doing());
      }
    }
  });
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      try {
        body(*selves[index]);
      } catch (...) {
        thrown[index] = std::current_exception();
      }
      ended[index].store(true);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const std::exception_ptr& exception : thrown) {
    if (exception) {
      std::rethrow_exception(exception);
    }
  }
}

}  // namespace support
