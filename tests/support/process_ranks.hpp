#pragma once
/// @file
/// Ranks as forked processes, with a store in memory that they share.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "support/finished_call.hpp"

namespace support {

/// A few keys of up to 255 bytes in memory that forked processes share. Copyable handle; the memory lives as long as
/// the processes. As in a job's store, calls fail once a rank is lost.
class ForkStore {
 public:
  ForkStore() {
    void* memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw dtrain::errno_error("mapping a test's store");
    table_ = ::new (memory) Table;
  }

  FinishedCall<void> set(const std::string& key, const std::string& value, dtrain::Deadline) {
    Entry& entry = table_->entries.at(table_->taken.fetch_add(1));
    copy(key, entry.key);
    copy(value, entry.value);
    entry.written.store(true);
    return {};
  }

  FinishedCall<std::string> get(const std::string& key, dtrain::Deadline deadline) const {
    while (!deadline.passed()) {
      for (const Entry& entry : table_->entries) {
        if (entry.written.load() && key == entry.key.data()) return FinishedCall(std::string(entry.value.data()));
      }
      if (const int lost = table_->lost.load(); lost >= 0) {
        dtrain::throw_cause({dtrain::CauseKind::lost, lost, "here", "its process ended"});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw dtrain::Error(dtrain::Errc::timeout, "waiting for key " + key + " took too long");
  }

  void lose(int rank) const { table_->lost.store(rank); }

 private:
  struct Entry {
    std::atomic<bool> written{false};
    std::array<char, 256> key{};
    std::array<char, 256> value{};
  };
  struct Table {
    std::atomic<std::size_t> taken{0};
    std::atomic<int> lost{-1};
    std::array<Entry, 128> entries{};
  };
  static void copy(const std::string& from, std::array<char, 256>& to) {
    std::memcpy(to.data(), from.data(), std::min(from.size(), to.size() - 1));
  }

  Table* table_;
};

/// How a rank's process ended: its exit code, or 128 + the signal.
using ExitCodes = std::vector<int>;

/// Forks a process for each rank, runs `body(rank)` in it (its result is the exit code; 99 after an exception, whose
/// text goes to stderr), and returns when all have ended. A rank whose process was killed is lost in `store`. A process
/// that takes longer than `patience` is killed: 137.
inline ExitCodes run_process_ranks(const ForkStore& store, int ranks, const std::function<int(int)>& body,
                                   std::chrono::seconds patience = std::chrono::seconds(120)) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      int code = 99;
      try {
        code = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      ::_exit(code);
    }
    if (process < 0) throw dtrain::errno_error("forking a rank");
    processes.push_back(process);
  }
  const dtrain::Deadline deadline = dtrain::Deadline::after(patience);
  ExitCodes codes(processes.size(), -1);
  for (std::size_t under_way = processes.size(); under_way > 0;) {
    for (std::size_t i = 0; i < processes.size(); ++i) {
      int status = 0;
      const pid_t ended = processes[i] > 0 ? ::waitpid(processes[i], &status, WNOHANG) : 0;
      if (ended > 0) {
        codes[i] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (WIFSIGNALED(status)) store.lose(static_cast<int>(i));
        processes[i] = -1;
        --under_way;
      } else if (processes[i] > 0 && deadline.passed()) {
        std::fprintf(stderr, "watchdog: the process of rank %zu of %d hangs\n", i, ranks);
        ::kill(processes[i], SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return codes;
}

}  // namespace support

/// So that a check that fails prints the codes.
template <>
struct doctest::StringMaker<support::ExitCodes> {
  static String convert(const support::ExitCodes& codes) {
    std::string text;
    for (const int code : codes)
      text += (text.empty() ? "" : ", ") + std::to_string(code);
    return text.c_str();
  }
};
