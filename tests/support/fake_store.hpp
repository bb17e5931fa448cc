#pragma once
/// @file
/// A store without a server, for ranks that are threads: the blocking forms of rendezvous::Store.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "support/finished_call.hpp"

namespace support {

class FakeStore;

/// What the ranks of a fake job share. The first cause that a rank reports is set on every rank's latch.
class FakeJob {
 public:
  using Store = FakeStore;

  explicit FakeJob(int world_size) : world_size_(world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      latches_.push_back(std::make_shared<dtrain::FailureLatch>());
      latches_.back()->set_reporter([this](const dtrain::Cause& cause) { fail(cause); });
    }
  }

  const std::shared_ptr<dtrain::FailureLatch>& latch(int rank) const {
    return latches_[static_cast<std::size_t>(rank)];
  }

  /// `f(key)` is called behind each set, by the thread that sets, so that a test can hold it up. The first `f` counts.
  void after_each_set(std::function<void(const std::string&)> f) {
    const std::lock_guard lock(mutex_);
    if (!after_set_) after_set_ = std::move(f);
  }

  void fail(const dtrain::Cause& cause) {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    for (const auto& latch : latches_)
      latch->set(cause);
    changed_.notify_all();
  }

 private:
  friend class FakeStore;
  int world_size_;
  std::vector<std::shared_ptr<dtrain::FailureLatch>> latches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::function<void(const std::string&)> after_set_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int> arrived_;
  std::map<std::string, int> reads_;
  std::map<std::string, std::int64_t> taken_;
};

class FakeStore {
 public:
  FakeStore(std::shared_ptr<FakeJob> job, int rank) : job_(std::move(job)), rank_(rank) {}

  FinishedCall<void> set(const std::string& key, std::string value, std::optional<dtrain::Deadline> = {}) {
    if (value.size() > (std::size_t{1} << 20)) throw dtrain::Error(dtrain::Errc::limit, "the value is too large");
    std::unique_lock lock(job_->mutex_);
    job_->values_[key] = std::move(value);
    job_->changed_.notify_all();
    const auto after_set = job_->after_set_;
    lock.unlock();
    if (after_set) after_set(key);
    return {};
  }

  FinishedCall<std::string> get(const std::string& key, dtrain::Deadline deadline) {
    std::unique_lock lock(job_->mutex_);
    wait(lock, key, deadline, [&] { return job_->values_.contains(key); });
    ++job_->reads_[key];
    return FinishedCall(job_->values_[key]);
  }

  FinishedCall<std::string> take(const std::string& key, std::int64_t readers, dtrain::Deadline deadline) {
    std::string value = get(key, deadline).wait();
    const std::lock_guard lock(job_->mutex_);
    if (++job_->taken_[key] >= readers) {
      job_->values_.erase(key);
      job_->taken_.erase(key);
    }
    return FinishedCall(std::move(value));
  }

  FinishedCall<std::optional<std::string>> try_get(const std::string& key, dtrain::Deadline) const {
    const std::lock_guard lock(job_->mutex_);
    const auto found = job_->values_.find(key);
    return FinishedCall(found == job_->values_.end() ? std::optional<std::string>() : std::optional(found->second));
  }

  FinishedCall<bool> erase(const std::string& key, dtrain::Deadline) {
    const std::lock_guard lock(job_->mutex_);
    return FinishedCall(job_->values_.erase(key) > 0);
  }

  bool contains(const std::string& key) const {
    const std::lock_guard lock(job_->mutex_);
    return job_->values_.contains(key);
  }

  FinishedCall<std::int64_t> add(const std::string& key, std::int64_t delta, dtrain::Deadline) {
    const std::lock_guard lock(job_->mutex_);
    std::string& value = job_->values_[key];
    const std::int64_t sum = (value.empty() ? 0 : std::stoll(value)) + delta;
    value = std::to_string(sum);
    return FinishedCall(sum);
  }

  FinishedCall<void> barrier(const std::string& name, dtrain::Deadline deadline) {
    std::unique_lock lock(job_->mutex_);
    ++job_->arrived_[name];
    job_->changed_.notify_all();
    try {
      wait(lock, name, deadline, [&] { return job_->arrived_[name] >= job_->world_size_; });
    } catch (...) {
      --job_->arrived_[name];  // it may come again
      throw;
    }
    return {};
  }

  /// How often a key that begins with `prefix` was read, by all ranks.
  int reads_below(const std::string& prefix) const {
    const std::lock_guard lock(job_->mutex_);
    int count = 0;
    for (const auto& [key, times] : job_->reads_)
      count += key.starts_with(prefix) ? times : 0;
    return count;
  }

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& key, dtrain::Deadline deadline,
            Condition condition) {
    const bool ended =
        job_->changed_.wait_until(lock, deadline.instant(), [&] { return job_->failed_ || condition(); });
    if (job_->failed_) dtrain::throw_cause(*job_->latch(rank_)->cause());
    if (!ended) throw dtrain::Error(dtrain::Errc::timeout, "waiting for key " + key + " took too long");
  }

  std::shared_ptr<FakeJob> job_;
  int rank_;
};

}  // namespace support
