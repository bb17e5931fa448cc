#pragma once
/// @file
/// The NCCL library: versions, environment, error codes, results of nonblocking calls. CommLock: held in every call on
/// one ncclComm_t. NcclOptions: a program's settings.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/backend/nccl/remedy.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Whether NCCL spends thread blocks on speed or leaves them to the program; NCCL's NCCL_CTA_POLICY_*.
/// @ingroup backends
enum class CtaPolicy {
  nccl_choice,
  speed,       ///< NCCL_CTA_POLICY_DEFAULT
  efficiency,  ///< the fewest blocks that give full bandwidth; wants registered memory
  zero,        ///< copy engines instead of blocks where possible, since 2.28; wants `symmetric_arenas`
};

/// Argument of NcclWith: `NcclWith<NcclOptions{.max_ctas = 8}>`. The same on every rank. Options that are newer than
/// the NCCL of the compilation have no effect. NCCL's environment variables (NCCL_MAX_CTAS and others) override all
/// options. Only NCCL_ALGO and NCCL_PROTO select an algorithm and a protocol.
/// @ingroup backends
struct NcclOptions {
  /// Minimum and maximum number of thread blocks of one collective; 0: NCCL's choice. The backward pass runs on the
  /// same multiprocessors: with fewer blocks the pass has more multiprocessors, but the collective takes longer.
  /// @{
  int min_ctas = 0;
  int max_ctas = 0;
  /// @}
  int cga_cluster_size = -1;  ///< blocks in a cluster, 0 to 8; -1: NCCL's choice
  int traffic_class = -1;     ///< class that marks network packets, since 2.26; -1: NCCL's choice
  /// Blocks of a collective that uses NVLink SHARP, since 2.27; 0: NCCL's choice.
  int nvls_ctas = 0;
  CtaPolicy cta_policy = CtaPolicy::nccl_choice;  ///< since 2.27
  /// How the program uses CUDA graphs with one communicator, since 2.29: 0 not at all, 1 one graph, 2 several graphs,
  /// or graphs and other operations; -1: NCCL's choice, which is 2. Lower values save work in each operation.
  int graph_usage_mode = -1;
  /// NCCL launches operations in the calling thread. Before a rank's first operation of a kind and size on a channel,
  /// in which NCCL connects ranks, dtrain waits for all ranks: inside NCCL that wait could not be aborted (user guide,
  /// Fault Tolerance). If a launch has not returned 5 s after a timeout or the job's failure, the process ends with
  /// exit code 75. False: NCCL starts a thread for each operation, which takes tens of microseconds longer.
  bool launches_in_caller = true;
  /// Channels that are opened from another one, by a wrapper or by ProcessGroup::split, use its buffers and connections
  /// (ncclConfig_t::splitShare). This saves device memory. But operations of channels that share run one after the
  /// other; no two threads may use such channels at once, closing them included; and an abort of one ends the
  /// operations of all, whose results are then wrong until the job has failed.
  bool share_splits = false;
  /// Registers arenas as windows of symmetric memory, since 2.27: faster between GPUs that NVLink connects. Otherwise
  /// arenas are registered one by one.
  bool symmetric_arenas = false;
};

}  // namespace DTRAIN_NAMESPACE::backend

#if DTRAIN_WITH_NCCL

#include <nccl.h>

namespace DTRAIN_NAMESPACE::backend::nccl {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0),
              "dtrain: backend::Nccl needs NCCL 2.18 or newer (ncclCommSplit)");

/// Whether NCCL keeps the program's order between the operations of all communicators of a device, and the first
/// version that does.
/// @{
inline constexpr const char* launch_order_variable = "NCCL_LAUNCH_ORDER_IMPLICIT";
inline constexpr int first_that_orders = 22600;
/// @}

/// The variable's value; null if it is not set or empty. Threads: no other thread changes the environment meanwhile.
inline const char* chosen_launch_order() noexcept {
  const char* const text = std::getenv(launch_order_variable);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

/// "2.28.9".
inline std::string version_text(int code) {
  return format_text("{}.{}.{}", {code / 10000, code / 100 % 100, code % 100});
}

/// Version of the library that runs, which may be newer than the header; 0 if NCCL does not report it.
inline int library_version() noexcept {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

/// Whether each communicator has its order of launches in its configuration: since 2.31, and NCCL reads the field only
/// from programs that were compiled with such a header. Otherwise NCCL_LAUNCH_ORDER_IMPLICIT has it for the process.
inline bool config_has_launch_order() noexcept {
  constexpr int first = 23100;
  return NCCL_VERSION_CODE >= first && library_version() >= first;
}

/// Checks that the library is at least as new as the header, apart from the patch number; an older one
/// lacks functions of the header.
inline void require_library() {
  const int library = library_version();
  const int header = NCCL_VERSION_CODE;
  if (library / 100 < header / 100) {
    throw_error(Errc::unsupported,
                "the program was compiled with NCCL {} and runs with NCCL {}; put a libnccl.so.2 at least as new first "
                "on the library path",
                {version_text(header), version_text(library)});
  }
}

/// Checks that the library serves a process that gives a call up and then makes communicators again. NCCL 2.26 and
/// older keep the job of a non-blocking call in one variable of the calling thread (src/group.cc), which the next call
/// overwrites. @throws Error (usage)
inline void require_rejoin() {
  constexpr int first = 22700;
  if (const int library = library_version(); library < first) {
    throw_error(Errc::usage,
                "an elastic job needs NCCL 2.27 or newer, and this process has NCCL {}, which may write to freed "
                "memory when the ranks are formed anew; put a newer libnccl.so.2 first on the library path",
                {library == 0 ? "of an unknown version" : version_text(library)});
  }
}

/// Who launches a communicator's operations. NCCL's own threads launch those of a non-blocking communicator.
enum class Launches : std::uint8_t {
  none,  ///< it has no operations; splits of it are non-blocking
  in_caller,
  in_threads,
};

/// Configuration of a communicator. From 2.31 on the device runs operations in the order of the program's calls, unless
/// NCCL_LAUNCH_ORDER_IMPLICIT is set, which then decides; before, see prepare_environment().
/// @param name for NCCL's profilers, since 2.27; it outlives the communicator
inline ncclConfig_t config_of(const NcclOptions& options, Launches launches,
                              [[maybe_unused]] const char* name) noexcept {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = launches == Launches::in_caller ? 1 : 0;
  config.splitShare = options.share_splits ? 1 : 0;
  const auto choose = [](int& field, int value, int none) {
    if (value != none) {
      field = value;
    }
  };
  choose(config.minCTAs, options.min_ctas, 0);
  choose(config.maxCTAs, options.max_ctas, 0);
  choose(config.cgaClusterSize, options.cga_cluster_size, -1);
#if NCCL_VERSION_CODE >= 22602
  choose(config.trafficClass, options.traffic_class, -1);
#endif
#if NCCL_VERSION_CODE >= 22703
  config.commName = name;
  choose(config.nvlsCTAs, options.nvls_ctas, 0);
  switch (options.cta_policy) {
    case CtaPolicy::nccl_choice: break;
    case CtaPolicy::speed: config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT; break;
    case CtaPolicy::efficiency: config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY; break;
    case CtaPolicy::zero:
#if NCCL_VERSION_CODE >= 22803
      config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
      break;
  }
#endif
#if NCCL_VERSION_CODE >= 22902
  choose(config.graphUsageMode, options.graph_usage_mode, -1);
#endif
#if NCCL_VERSION_CODE >= 23100
  if (chosen_launch_order() == nullptr) config.launchOrderImplicit = 1;
#endif
  return config;
}

/// The options' value for a group's channels, which NCCL_COMM_BLOCKING=0 overrides.
inline Launches launches_of(const NcclOptions& options) {
  const bool in_caller = options.launches_in_caller &&
                         identity::Variables(identity::snapshot_environment()).text("NCCL_COMM_BLOCKING") != "0";
  return in_caller ? Launches::in_caller : Launches::in_threads;
}

/// Allocates memory of the current device, from 2.19 on of the kind that NCCL registers best.
inline ncclResult_t allocate(void** memory, std::size_t bytes) {
#if NCCL_VERSION_CODE >= 21901
  return ncclMemAlloc(memory, bytes);
#else
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
#endif
}

inline ncclResult_t release(void* memory) {
#if NCCL_VERSION_CODE >= 21901
  return ncclMemFree(memory);
#else
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
#endif
}

/// A communicator's registration of a memory range. Not movable: NCCL may write it later.
struct MemoryRegistration {
  void* handle = nullptr;
#if NCCL_VERSION_CODE >= 22703
  ncclWindow_t window = nullptr;
#endif
};

/// Registration may be in progress when this returns. Registering a window is collective, a handle is not.
inline ncclResult_t register_memory(ncclComm_t communicator, void* memory, std::size_t bytes, bool symmetric,
                                    MemoryRegistration& registration) {
#if NCCL_VERSION_CODE >= 22703
  if (symmetric) {
    return ncclCommWindowRegister(communicator, memory, bytes, &registration.window, NCCL_WIN_COLL_SYMMETRIC);
  }
#endif
#if NCCL_VERSION_CODE >= 21901
  static_cast<void>(symmetric);
  return ncclCommRegister(communicator, memory, bytes, &registration.handle);
#else
  static_cast<void>(communicator), static_cast<void>(memory), static_cast<void>(bytes);
  static_cast<void>(symmetric), static_cast<void>(registration);
  return ncclSuccess;
#endif
}

/// Not collective, for both kinds.
inline ncclResult_t deregister_memory(ncclComm_t communicator, const MemoryRegistration& registration) {
#if NCCL_VERSION_CODE >= 22703
  if (registration.window != nullptr) {
    return ncclCommWindowDeregister(communicator, registration.window);
  }
#endif
#if NCCL_VERSION_CODE >= 21901
  return registration.handle != nullptr ? ncclCommDeregister(communicator, registration.handle) : ncclSuccess;
#else
  static_cast<void>(communicator), static_cast<void>(registration);
  return ncclSuccess;
#endif
}

/// The category of ncclResult_t, named "nccl".
inline const std::error_category& nccl_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "nccl"; }
    std::string message(int code) const override {
      const char* const text = ncclGetErrorString(static_cast<ncclResult_t>(code));
      return text != nullptr ? text : "NCCL error " + std::to_string(code);
    }
  };
  static const Category category;
  return category;
}

inline std::string name_of(ncclResult_t code) {
  constexpr int timeout = 8;  // NCCL 2.31's ncclTimeout; the header may be older than the library
  if (static_cast<int>(code) == timeout) return "ncclTimeout";
  switch (code) {
    case ncclSuccess: return "ncclSuccess";
    case ncclUnhandledCudaError: return "ncclUnhandledCudaError";
    case ncclSystemError: return "ncclSystemError";
    case ncclInternalError: return "ncclInternalError";
    case ncclInvalidArgument: return "ncclInvalidArgument";
    case ncclInvalidUsage: return "ncclInvalidUsage";
    case ncclRemoteError: return "ncclRemoteError";
    case ncclInProgress: return "ncclInProgress";
    default: return "ncclResult_t " + std::to_string(static_cast<int>(code));
  }
}

/// NCCL's last error in this process, at most 300 characters; empty if there is none. The caller holds the lock of
/// `communicator`, or passes null.
inline std::string last_error(ncclComm_t communicator) {
  constexpr std::size_t longest = 300;
  const char* const text = ncclGetLastError(communicator);
  if (text == nullptr) {
    return {};
  }
  std::string_view error_text(text, ::strnlen(text, longest));
  while (!error_text.empty() && (error_text.back() == '\n' || error_text.back() == ' ')) {
    error_text.remove_suffix(1);
  }
  return sanitize(error_text);
}

/// Rank and device of the caller, for NCCL's errors.
struct Caller {
  int rank = 0;  ///< rank in the job
  int device = 0;
};

/// "ncclAllReduce on rank 1, device 0: ncclSystemError, unhandled system error (last error: ...); REMEDY".
inline Error nccl_error(ncclResult_t code, const std::string& call, Caller caller, const std::string& error_text,
                        const std::string& remedy = "NCCL_DEBUG=WARN makes NCCL say more",
                        SourceLocation where = SourceLocation::current()) {
  Error error(
      std::error_code(static_cast<int>(code), nccl_category()),
      format_text("{} on rank {}, device {}: {}, {}{}{}{}; {}",
                  {call, caller.rank, caller.device, name_of(code), nccl_category().message(static_cast<int>(code)),
                   error_text.empty() ? "" : " (last error: ", error_text, error_text.empty() ? "" : ")",
                   remedy_of(code == ncclSystemError, error_text, remedy)}),
      where);
  error.with_rank(caller.rank);
  return error;
}

/// A warning about the variables; null if they are in order.
inline const char* warning_about(const identity::Environment& environment) {
  return identity::Variables(environment).text("NCCL_COMM_BLOCKING") != "1"
             ? nullptr
             : "NCCL_COMM_BLOCKING=1 makes NCCL block while ranks connect, where no timeout ends it; unset it, as "
               "NCCL launches dtrain's operations in the calling thread without it";
}

/// Whether NCCL itself orders the operations of a device's channels: see prepare_environment(), which was called, and
/// config_of(). Threads: no other thread changes the environment meanwhile.
inline bool has_implicit_launch_order() noexcept {
  const char* const chosen = chosen_launch_order();
  return library_version() >= first_that_orders &&
         (chosen != nullptr ? std::strtoll(chosen, nullptr, 0) != 0 : config_has_launch_order());  // NCCL's reading
}

/// Sets NCCL_LAUNCH_ORDER_IMPLICIT unless the user has: the device then runs operations in the order of the program's
/// calls, for all communicators of the process (from NCCL 2.26 on). Does not set the variable where each communicator's
/// configuration has that order (2.31): the variable would also change the communicators of other libraries
/// (PyTorch's). Logs a warning if a variable breaks a guarantee of dtrain.
/// NCCL reads the variable once in a process: call this before any library's first collective over NCCL.
/// Threads: no other thread reads the environment meanwhile. @throws Error if the variable cannot be set
inline void prepare_environment() {
  const bool is_unset = chosen_launch_order() == nullptr;  // or empty, which NCCL takes for its default
  if (is_unset && !config_has_launch_order() && ::setenv(launch_order_variable, "1", 1) != 0) {
    throw errno_error("setting NCCL_LAUNCH_ORDER_IMPLICIT");
  }
  if (const char* const warning = warning_about(identity::snapshot_environment())) {
    log(LogLevel::warning, warning);
  }
}

/// Holds a communicator. NCCL forbids calls on it from two threads at once, aborts included. Threads: any.
/// A communicator that is never taken stays until the process ends.
class CommLock {
 public:
  /// Holds the lock.
  class Guard {
   public:
    /// Null before adopt() and after take().
    ncclComm_t communicator() const noexcept { return lock_owner_->communicator_; }
    bool is_granted() const noexcept { return lock_.owns_lock(); }

    /// Between unlock() and lock() other threads may call NCCL; later calls see their changes.
    void unlock() { lock_.unlock(); }
    void lock() { lock_.lock(); }

   private:
    friend class CommLock;
    Guard(CommLock& owner, std::unique_lock<std::mutex> lock) noexcept : lock_owner_(&owner), lock_(std::move(lock)) {}

    CommLock* lock_owner_;
    std::unique_lock<std::mutex> lock_;
  };

  CommLock() = default;
  CommLock(const CommLock&) = delete;
  CommLock& operator=(const CommLock&) = delete;

  /// Blocking: while another thread holds it.
  [[nodiscard]] Guard lock() { return {*this, std::unique_lock(mutex_)}; }

  /// The Guard may not be granted.
  [[nodiscard]] Guard try_lock() { return {*this, std::unique_lock(mutex_, std::try_to_lock)}; }

  void adopt(const Guard& /*guard*/, ncclComm_t communicator) noexcept { communicator_ = communicator; }

  /// For the thread that ends the communicator without the lock, because ending may wait for other ranks. Later calls
  /// of take() and communicator() give null. @returns null if there is no communicator
  [[nodiscard]] ncclComm_t take(const Guard& /*guard*/) noexcept { return std::exchange(communicator_, nullptr); }

 private:
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
};

/// NCCL's asynchronous state: an error found in its own threads puts the communicator out of service.
inline ncclResult_t state_of(const CommLock::Guard& held) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(held.communicator(), &state);
  return code != ncclSuccess ? code : state;
}

/// Waits for a call that returned `code`. Also queries the communicator after ncclSuccess, which ncclCommSplit and,
/// from 2.28 on, ncclCommWindowRegister return while they still run (src/init.cc, src/dev_runtime.cc). Until the call
/// has ended, no thread makes another call or enqueues CUDA work on its stream. Blocking: launching an operation takes
/// tens of microseconds, so the lock is kept for 300; after that it is released between queries, for aborts.
/// @param give_up is called without the lock
/// @returns the call's result: ncclInProgress if the deadline passed or the wait was given up
template <class GiveUp>
ncclResult_t wait_for_result_blocking(CommLock::Guard& held, ncclResult_t code, Deadline deadline, GiveUp give_up) {
  constexpr std::chrono::microseconds longest_sleep{2000};
  constexpr std::chrono::microseconds kept{300};
  const auto began = Deadline::Clock::now();
  std::chrono::microseconds sleep{20};
  if (code == ncclSuccess && held.communicator() != nullptr) {
    code = state_of(held);
  }
  for (; code == ncclInProgress; code = state_of(held)) {
    if (Deadline::Clock::now() - began < kept) {
      std::this_thread::yield();
      continue;
    }
    held.unlock();
    const bool gives_up = give_up();
    if (!gives_up) {
      std::this_thread::sleep_for(sleep);
      sleep = std::min(2 * sleep, longest_sleep);
    }
    held.lock();
    if (gives_up || held.communicator() == nullptr) {
      return ncclInProgress;
    }
    if (deadline.passed()) {
      return state_of(held);
    }
  }
  return code;
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
