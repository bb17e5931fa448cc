#pragma once
/// @file
/// The one thread of a process that calls MPI.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/async/blocked_signals.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/orders.hpp"
#include "dtrain/backend/mpi/presence.hpp"
#include "dtrain/backend/mpi/progress.hpp"
#include "dtrain/backend/mpi/session.hpp"
#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Starts MPI, runs every call to it, and ends it. All channels of a process share one.
/// Threads: any, but for what it says of itself. Lifetime: as long as the last owner.
class Engine {
 public:
  /// What is asked in the thread that owns MPI.
  struct Inside {
    std::optional<Session> session;
    ProgressLoop loop;
    int channels = 0;      ///< whose tags this process has chosen
    std::string secret{};  ///< of the job, once it was handed out
  };

  /// Collective over MPI_COMM_WORLD where it is the first call, blocking. See Presence.
  /// @throws Error (timeout, unsupported, mpi)
  static std::shared_ptr<Engine> shared_blocking(Deadline deadline) {
    return presence().shared_blocking([deadline] { return std::shared_ptr<Engine>(new Engine(deadline)); }, deadline);
  }

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Blocking: ends MPI with all other ranks where nothing was given up, as long as end_within() says; else at once.
  ~Engine() {
    const bool clean = opened_.load() && !failed_.load();
    if (!clean) {
      presence().give_up();
    }
    orders().give({nullptr, nullptr, [inside = &shared_->inside, clean] {
                     if (clean && !inside->loop.out_of_service()) {
                       inside->session->end();
                     }
                     inside->loop.stop();
                   }});
    if (shared_->block_until_ended(Deadline::after(clean ? patience_.load() : std::chrono::seconds(2)))) {
      thread_.join();
    } else {
      log(LogLevel::warning, "MPI_Finalize did not come back; this process ends without it");
      thread_.detach();
    }
  }

  /// The process's place in MPI_COMM_WORLD.
  int rank() const noexcept { return session().rank(); }
  int size() const noexcept { return session().size(); }
  int highest_tag() const noexcept { return session().highest_tag(); }
  MPI_Comm communicator() const noexcept { return session().communicator(); }
  const std::string& version_text() const noexcept { return session().version_text(); }

  Orders& orders() noexcept { return shared_->inside.loop.orders(); }
  Requests& requests() noexcept { return shared_->inside.loop.requests(); }

  /// Runs `call(Inside&)` in the thread that owns MPI. Blocking: until it has returned, or the deadline passes, after
  /// which it may still run. @throws what the call throws, Error (timeout)
  void run_blocking(std::function<void(Inside&)> call, Deadline deadline, const char* doing) {
    struct Result {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      std::exception_ptr thrown;
    };
    const auto result = std::make_shared<Result>();
    orders().give({nullptr, nullptr, [result, inside = &shared_->inside, call = std::move(call)] {
                     std::exception_ptr thrown;
                     try {
                       call(*inside);
                     } catch (...) {
                       thrown = std::current_exception();
                     }
                     const std::lock_guard lock(result->mutex);
                     result->thrown = thrown;
                     result->done = true;
                     result->changed.notify_all();
                   }});
    std::unique_lock lock(result->mutex);
    if (!block_until(result->changed, lock, deadline, [&] { return result->done; })) {
      throw Error(Errc::timeout, std::string(doing) + " took too long; have all processes of the job come as far?");
    }
    if (result->thrown) {
      std::rethrow_exception(result->thrown);
    }
  }

  /// A channel is open: the ranks go on to the end together, unless something fails.
  void expect_end() noexcept { opened_.store(true); }
  /// The ranks will not all come to the end: it is not waited for.
  void expect_no_end() noexcept { failed_.store(true); }
  void end_within(std::chrono::nanoseconds patience) noexcept { patience_.store(patience); }

 private:
  /// It outlives whatever the program destroys at its end.
  static Presence<Engine>& presence() {
    static Presence<Engine>& present = *new Presence<Engine>;
    return present;
  }

  /// Outlives an Engine whose thread does not come back.
  struct Shared {
    bool block_until_ended(Deadline deadline) {
      std::unique_lock lock(mutex);
      return block_until(changed, lock, deadline, [this] { return ended; });
    }

    Inside inside;
    std::mutex mutex;
    std::condition_variable changed;
    bool started = false;
    bool ended = false;
    std::exception_ptr failed;
  };

  explicit Engine(Deadline deadline) : shared_(std::make_shared<Shared>()) {
    const async::BlockedSignals blocked;
    try {
      thread_ = std::thread([shared = shared_] { main(*shared); });
    } catch (const std::system_error& failure) {
      throw Error(failure.code(), std::string("starting the thread that calls MPI: ") + failure.what());
    }
    std::unique_lock lock(shared_->mutex);
    const bool came = block_until(shared_->changed, lock, deadline, [this] { return shared_->started; });
    lock.unlock();
    if (!came) {
      thread_.detach();
      throw Error(Errc::timeout, "MPI_Init_thread did not come back in time; have all processes of the job started?");
    }
    if (shared_->failed) {
      thread_.join();
      std::rethrow_exception(shared_->failed);
    }
  }

  static void main(Shared& shared) noexcept {
    try {
      shared.inside.session.emplace();
    } catch (...) {
      shared.failed = std::current_exception();
    }
    tell(shared, shared.started);
    if (!shared.failed) {
      shared.inside.loop.run(shared.inside.session->is_own());
    }
    tell(shared, shared.ended);
  }

  static void tell(Shared& shared, bool& flag) noexcept {
    const std::lock_guard lock(shared.mutex);
    flag = true;
    shared.changed.notify_all();
  }

  const Session& session() const noexcept { return *shared_->inside.session; }

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
  std::atomic<bool> opened_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::chrono::nanoseconds> patience_{std::chrono::minutes(10)};
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
