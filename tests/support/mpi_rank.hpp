#pragma once
/// @file
/// A rank over MPI, for programs of which mpirun starts a process for each rank: MpiRank, and the jobs of such ranks.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "dtrain/backend/mpi.hpp"
#include "support/channel_context.hpp"
#include "support/directory_job.hpp"
#include "support/host_rank.hpp"

namespace support {

/// This process among those that mpirun has started, which all open the same jobs in the same order. Needs the
/// variables that mpi_contract_test.cpp sets:
/// - DTRAIN_TEST_FOLDER is empty at first, and the same for all processes.
/// - DTRAIN_TEST_JOB is the number of the one job of so many ranks that is run; all are if it is -1. A job that fails
///   is run alone, because MPI may be out of service in a process after it.
/// At the end each waits for the others, because mpirun kills what still runs when a process ends without MPI_Finalize.
/// How many jobs there were is written to the file `jobs`. Threads: the main one; any for next_folder().
class MpiProcess {
 public:
  static MpiProcess& self() {
    static MpiProcess process;
    return process;
  }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;
  ~MpiProcess() {
    if (rank() == 0) std::ofstream(folder_ + "/jobs") << jobs_;
    try {
      meet("end", std::chrono::seconds(30));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: at the end: %s\n", rank(), error.what());
    }
  }

  int rank() const { return engine_->runtime().rank(); }
  int size() const { return engine_->runtime().size(); }
  std::string next_folder() { return folder_ + "/" + std::to_string(folders_++); }

  /// Of each job of as many ranks as there are processes, once. @returns whether it is to run
  bool begins_job() { return wanted_ < 0 ? ++jobs_ > 0 : jobs_++ == wanted_; }

  /// Blocking: until all processes are here. @throws Error (timeout)
  void meet(const std::string& place, std::chrono::seconds patience) {
    DirectoryStore store(meetings_, rank());
    store.set(place + "/" + std::to_string(rank()), "").wait();
    for (int other = 0; other < size(); ++other)
      static_cast<void>(store.get(place + "/" + std::to_string(other), dtrain::Deadline::after(patience)).wait());
  }
  int job() const { return jobs_ - 1; }

 private:
  MpiProcess()
      : folder_(variable("DTRAIN_TEST_FOLDER")),
        wanted_(std::stoi(variable("DTRAIN_TEST_JOB"))),
        meetings_(std::make_shared<DirectoryJob>(folder_ + "/meetings")),
        engine_(dtrain::backend::mpi::Engine::shared_blocking(dtrain::Deadline::after(std::chrono::seconds(60)))) {}

  static std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: this program starts itself");
    return value;
  }

  const std::string folder_;
  const int wanted_;
  int jobs_ = 0;
  int folders_ = 0;
  std::shared_ptr<DirectoryJob> meetings_;
  std::shared_ptr<dtrain::backend::mpi::Engine> engine_;  ///< held: a process starts MPI once
};

/// Each process is one rank, and takes part in the jobs of as many ranks as there are processes.
struct MpiWorld {
  struct Job : DirectoryJob {
    explicit Job(int /*world_size*/) : DirectoryJob(MpiProcess::self().next_folder()) {}
  };

  /// As ThreadWorld::run, in the calling thread.
  static void run(int ranks, const std::function<void(RankThread&)>& body,
                  std::chrono::milliseconds patience = patience_with_ranks) {
    MpiProcess& process = MpiProcess::self();
    if (ranks != process.size() || !process.begins_job()) return;
    RankThread self(process.rank(), ranks);
    std::exception_ptr thrown;
    {
      const Watchdog watchdog(patience, [&self] {
        std::fprintf(stderr, "watchdog: rank %d of %d hangs in: %s\n", self.rank(), self.size(), self.doing());
      });
      try {
        body(self);
      } catch (...) {
        thrown = std::current_exception();
      }
      self.doing("waiting for the other ranks' ends");
      process.meet("job " + std::to_string(process.job()), std::chrono::seconds(60));
    }
    if (thrown) std::rethrow_exception(thrown);
  }
};

struct MpiRank : HostRank<dtrain::backend::Mpi> {
  using World = MpiWorld;
  using HostRank::HostRank;
};

}  // namespace support
