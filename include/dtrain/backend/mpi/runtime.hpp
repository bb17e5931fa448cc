#pragma once
/// @file
/// MpiRuntime: MPI's initialisation and finalisation in this process.

#include <optional>
#include <string>

#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Owns a duplicate of MPI_COMM_WORLD, made before any message. Channels of point-to-point messages make no collective
/// MPI call after it, so that all their calls can be cancelled at any moment. Threads: one, which initialises MPI;
/// any for what is constant.
class MpiRuntime {
 public:
  /// Collective over MPI_COMM_WORLD, blocking without a deadline. Initialises MPI unless the program did.
  /// @throws Error (unsupported, mpi)
  MpiRuntime() {
    int initialized = 0;
    int finalized = 0;
    check(MPI_Initialized(&initialized), "asking whether MPI runs");
    check(MPI_Finalized(&finalized), "asking whether MPI has ended");
    if (finalized != 0) {
      throw_error(Errc::unsupported,
                  "MPI has ended in this process and cannot be started again; keep one process group until the end, "
                  "or initialise and finalize MPI in main, around all of them");
    }
    if (initialized == 0) {
      start();
    } else {
      check_thread_level();
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "duplicating MPI_COMM_WORLD");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "having errors returned");
    check(MPI_Comm_rank(communicator_, &rank_), "asking for the rank");
    check(MPI_Comm_size(communicator_, &size_), "asking for the number of ranks");
    int* bound = nullptr;
    int has_bound = 0;
    check(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &has_bound), "asking for the largest tag");
    highest_tag_ = has_bound != 0 ? *bound : 32767;  // guaranteed by the standard
    library_ = library_name();
  }
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  MPI_Comm communicator() const noexcept { return communicator_; }
  /// Whether this object initialised MPI, and therefore finalizes it.
  bool is_own() const noexcept { return started_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int highest_tag() const noexcept { return highest_tag_; }
  const std::string& version_text() const noexcept { return library_; }

  /// Collective if is_own(), and then blocking until every rank calls it.
  void end() noexcept {
    if (has_ended()) {
      return;  // the program ended it before its process group
    }
    if (started_) {
      flush();
    }
    static_cast<void>(MPI_Comm_free(&communicator_));
    if (started_) {
      static_cast<void>(MPI_Finalize());
    }
  }

 private:
  /// Receives a last message from each peer that may have sent a close message, and sends one likewise. Reasons: Open
  /// MPI aborts a process whose peer closes a connection before all bytes are written. MPI_Finalize does not wait for
  /// messages that no rank has to receive. With more than `most_notified` ranks: as channels of all ranks do.
  void flush() const noexcept {
    constexpr int most_notified = 64;  // as in mpi/transport.hpp
    for (int distance = 1; distance < size_; distance = size_ <= most_notified ? distance + 1 : 2 * distance) {
      char sent = 0;
      char received = 0;
      static_cast<void>(MPI_Sendrecv(&sent, 1, MPI_CHAR, (rank_ + distance) % size_, highest_tag_, &received, 1,
                                     MPI_CHAR, (rank_ + size_ - distance) % size_, highest_tag_, communicator_,
                                     MPI_STATUS_IGNORE));
    }
  }

  void start() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting MPI");
    started_ = true;
    if (provided < MPI_THREAD_SERIALIZED) {
      throw_error(Errc::unsupported,
                  "{} lets one thread alone call it, and backend::Mpi calls it from each thread that waits; use an MPI "
                  "that was built with threads (MPI_THREAD_SERIALIZED or more)",
                  {library_name()});
    }
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "having errors returned");
  }

  /// Requires MPI_THREAD_MULTIPLE: dtrain's threads call MPI while the program's threads may call it.
  static void check_thread_level() {
    int provided = 0;
    check(MPI_Query_thread(&provided), "asking for the level of threads");
    if (provided < MPI_THREAD_MULTIPLE) {
      throw_error(Errc::unsupported,
                  "this program initialised MPI for one thread at a time, but backend::Mpi calls it from a thread of "
                  "its own; initialise it with MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided), or not "
                  "at all");
    }
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int highest_tag_ = 0;
  bool started_ = false;
  std::string library_;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
