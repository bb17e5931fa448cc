#pragma once
/// @file
/// A job whose ranks are processes of this machine: they share a store, and the job's first cause, in a folder.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "support/finished_call.hpp"

namespace support {

class DirectoryStore;

/// One process's view of the job. The first cause that a rank reports is set on every rank's latch, as FakeJob does,
/// on the others within milliseconds. Threads: any.
class DirectoryJob {
 public:
  using Store = DirectoryStore;

  /// @param folder is made when the first process writes to it
  explicit DirectoryJob(std::string folder) : folder_(std::move(folder)) {
    latch_->set_reporter([this](const dtrain::Cause& cause) { fail(cause); });
  }
  DirectoryJob(const DirectoryJob&) = delete;
  DirectoryJob& operator=(const DirectoryJob&) = delete;
  ~DirectoryJob() {
    latch_->set_reporter({});
    ended_ = true;
    if (watcher_.joinable()) watcher_.join();
  }

  /// The one of this process's rank; from this call on it is set when another process reports a cause.
  const std::shared_ptr<dtrain::FailureLatch>& latch(int /*rank*/) {
    std::call_once(watched_, [this] {
      watcher_ = std::thread([this] {
        while (!ended_) {
          take_cause();
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      });
    });
    return latch_;
  }

  void fail(const dtrain::Cause& cause) {
    dtrain::Serializer writer;
    dtrain::Cause written = cause;
    dtrain::rendezvous::fields(writer, written);
    const std::string file = write(std::string(writer.characters()));
    static_cast<void>(::link(file.c_str(), failed().c_str()));  // fails if an earlier cause is there
    static_cast<void>(::unlink(file.c_str()));
    take_cause();
  }

 private:
  friend class DirectoryStore;

  std::string failed() const { return folder_ + "/failed"; }
  std::string value_of(std::string key) const {
    for (char& character : key)
      character = character == '/' ? '|' : character;
    return folder_ + "/=" + key;
  }

  /// @returns the path of a new file that has these bytes
  std::string write(const std::string& bytes) {
    std::filesystem::create_directories(folder_);
    std::string path = folder_ + "/new-" + std::to_string(::getpid()) + "-" + std::to_string(written_++);
    std::ofstream file(path, std::ios::binary);
    file << bytes << std::flush;
    if (!file) throw dtrain::errno_error("writing " + path);
    return path;
  }

  static std::optional<std::string> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  void take_cause() {
    if (latch_->failed()) return;
    const std::optional<std::string> bytes = read(failed());
    if (!bytes) return;
    dtrain::Cause cause;
    dtrain::Serializer reader(*bytes);
    dtrain::rendezvous::fields(reader, cause);
    reader.require_finished("a test job's cause");
    latch_->set(cause);
  }

  const std::string folder_;
  const std::shared_ptr<dtrain::FailureLatch> latch_ = std::make_shared<dtrain::FailureLatch>();
  std::atomic<int> written_{0};
  std::atomic<bool> ended_{false};
  std::once_flag watched_;
  std::thread watcher_;
};

/// As FakeStore; a key is a file.
class DirectoryStore {
 public:
  DirectoryStore(std::shared_ptr<DirectoryJob> job, int /*rank*/) : job_(std::move(job)) {}

  FinishedCall<void> set(const std::string& key, const std::string& value, std::optional<dtrain::Deadline> = {}) {
    std::filesystem::rename(job_->write(value), job_->value_of(key));
    return {};
  }

  FinishedCall<std::string> get(const std::string& key, dtrain::Deadline deadline) const {
    for (;;) {
      if (const auto cause = job_->latch_->cause()) dtrain::throw_cause(*cause);
      if (auto value = DirectoryJob::read(job_->value_of(key))) return FinishedCall(std::move(*value));
      if (deadline.passed()) throw dtrain::Error(dtrain::Errc::timeout, "waiting for key " + key + " took too long");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  FinishedCall<std::optional<std::string>> try_get(const std::string& key, dtrain::Deadline) const {
    return FinishedCall(DirectoryJob::read(job_->value_of(key)));
  }

 private:
  std::shared_ptr<DirectoryJob> job_;
};

}  // namespace support
