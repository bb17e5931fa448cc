#pragma once
/// @file
/// What a test may do with the emulated CUDA runtime and NCCL that a real one would not let it.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

/// DTRAIN_EMULATED_DELAYS=SEED makes contexts, communicators, launches, aborts and exits take random times: see
/// delays.hpp. DTRAIN_EMULATED_NCCL=22605 is the version that NCCL says that it has; it behaves as ever.
namespace emulation {

/// What this is, for whoever asks; the emulated devices have it as their name.
inline constexpr char description[] = "emulated device (dtrain tests; no GPU)";

/// Every device, where a fault can be tied to one.
inline constexpr int any_device = -1;

/// Emulated devices of this process: 1, or what the environment variable DTRAIN_EMULATED_DEVICES says, up to 16, of
/// which CUDA_VISIBLE_DEVICES leaves those that it lists. Here 0 is none, and -1 what the environment says.
void set_device_count(int devices);
/// Whether the process has a context on the device, which takes memory of it.
bool has_context(int device);
/// As if nothing had used the device yet.
void drop_context(int device);
/// As after a kernel that used a wrong address: from now on every call of the process that needs the device returns
/// cudaErrorIllegalAddress, NCCL's ncclUnhandledCudaError, until the process ends or calls reset. NCCL operations of
/// the device end without a result, and other ranks wait for them; ncclCommAbort and ncclCommDestroy still give up what
/// they hold. Other work goes on. Threads: any.
void break_device(int device);

/// A kernel: `work` runs at its place in the stream, on the stream's thread. It reaches device memory by host_address.
void launch(cudaStream_t stream, std::function<void()> work);

/// Whether the calling thread runs the emulation's own code, in a call that steps make or in a stream's thread, and no
/// host function: whatever it allocates there is not the program's.
bool in_runtime() noexcept;

/// Where a kernel finds the memory that a device pointer names; pointers to host memory are returned as they are.
/// Threads: any; no lock is taken, so that ThreadSanitizer sees no order that a GPU would not give.
void* host_address(const void* pointer);
template <class T>
T* host_address(T* pointer) {
  return static_cast<T*>(host_address(static_cast<const void*>(pointer)));
}

/// The nth call of a function from now on (1: the next) returns `error`, a cudaError_t or ncclResult_t, and does
/// nothing. `device` restricts it to calls of threads whose current device that is, and only those are counted.
void fail(const std::string& function, int nth, int error, int device = any_device);

/// The nth cudaStreamWaitEvent from now on waits for nothing (0: none).
void ignore_wait(int nth);
/// The nth cudaEventRecord from now on records nothing (0: none).
void ignore_record(int nth);
/// Calls of cudaStreamWaitEvent since the last call of ignore_wait or reset.
int waits();
/// Calls of cudaEventRecord since the last call of ignore_record or reset.
int records();
/// Calls that block the host until a device has done something: synchronisations, and copies of pageable memory.
int host_waits();
/// Calls that wait for all streams of a device, or may: cudaDeviceSynchronize; calls that allocate, free, register or
/// deregister device or pinned memory, those of cudaMallocAsync and cudaFreeAsync apart; the loading of a kernel, and
/// its first launch. Since the last call of reset.
int device_waits();
/// Calls of the CUDA runtime and driver that the calling thread has made.
int calls_of_thread();
/// Kernels that cuLaunchKernel has enqueued, since the process began.
int kernel_launches();
/// Whether a failure that fail() planned for the function has not come yet.
bool is_failure_pending(const std::string& function);

/// Bytes that copies were to bring from devices to the host.
std::size_t bytes_to_host();

/// Whether devices can wait for a value in memory (cuStreamWaitValue32); they can unless told otherwise.
void set_stream_memory_operations(bool there);

/// Bytes of device memory that are allocated.
std::size_t allocated_device_bytes();

/// What goes wrong in the nth NCCL operation.
enum class Fault {
  async_error,  ///< the communicator reports ncclRemoteError, the operation never ends
  hang,         ///< the operation never ends, as if the rank had died
  kill,         ///< the process ends by SIGKILL
};

/// The nth NCCL collective, send or receive that starts on a device from now on goes wrong on its rank (0: none).
void fault_in_operation(Fault fault, int nth, int device = any_device);
/// Calls of ncclCommInitRankConfig since the last call of reset.
int initialisations();
/// Whether the initialisation of communicators begun from now on never completes on that device; it can be aborted.
/// With DTRAIN_EMULATED_INIT=hangs none completes.
void init_never_completes(bool never, int device = any_device);
/// Whether it ends with ncclSystemError there, after the ranks have connected; the other ranks' succeed.
void init_fails(bool fails, int device = any_device);

/// Whether streams made from now on share hardware queues: a device has 8, or CUDA_DEVICE_MAX_CONNECTIONS, at most 32.
/// What stands behind work that waits in the same queue waits, too, as on a GPU; stricter than there, a queue does one
/// thing at a time. Else each stream runs by itself.
void set_hardware_queues(bool shared);

/// Whether ranks of communicators that are made from now on are said to be on several hosts: those of the machine's
/// first so many devices on one, and so on (0: where they are). NCCL connects such ranks over the network.
void set_devices_per_host(int devices);
/// How many operations of a communicator over the network may be in flight (0: as many as there are): a launch beyond
/// spins in its thread, as in src/proxy.cc, ncclLocalOpAppend, until one ends, or a test lifts the limit. An abort does
/// not wake it, and so waits, too. NCCL has 2048 places, of which a collective takes one or more for each of its CUDA
/// blocks.
void limit_operations_in_flight(int most);
/// Bytes that the communicators of the process may take in /dev/shm (SIZE_MAX: no limit): 34.2 MB each, when it first
/// connects over the network; beyond, that fails with ncclSystemError.
void limit_shared_memory(std::size_t bytes);
/// What they have taken and not given back.
std::size_t shared_memory_taken();

/// What becomes of ranks that call different collectives, or with different types or operations. As NCCL does, ranks
/// with different counts go on, where these take the same number of steps, with values that mean nothing.
enum class Mismatch {
  hang,    ///< nobody's operation ends, as with NCCL
  report,  ///< each rank's communicator reports ncclInvalidUsage
};
void set_mismatch(Mismatch mismatch);
/// Whether a rank whose process has died is reported as ncclRemoteError; else the others hang, as they may with NCCL.
void set_dead_ranks_reported(bool reported);

/// How often ncclCommGetAsyncError says ncclInProgress after an operation of a non-blocking communicator has been
/// launched: 1. As by NCCL, a thread launches each: see Communicator::launch.
void set_polls_in_progress(int polls);
/// Whether launches of several ranks wait, with the ranks connected, before they enqueue; an abort does not wake them.
/// With DTRAIN_EMULATED_LAUNCHES=held they do from the start.
void hold_launches(bool held);
/// Launches that wait so now.
int launches_held();
/// Collectives of one rank that NCCL runs a kernel for, because they multiply, since the last call of reset.
int kernels_of_one_rank();
/// Launches of NCCL's, since the process began: each collective or message outside a group, and each group.
int nccl_launches();
/// Bytes of the buffers of NCCL's operations. A buffer with a block for each rank counts with all of its blocks.
struct Traffic {
  std::size_t all_reduced = 0;
  std::size_t reduce_scattered = 0;
  std::size_t gathered = 0;
  std::size_t other = 0;  ///< broadcasts, sends, receives, and reductions to one rank
};
/// Of the operations that have begun to run on the device, since the last call of reset. A collective of one rank
/// counts.
Traffic traffic(int device);
/// Calls on one communicator that ran at once in two threads, which NCCL forbids.
int concurrent_calls();
/// Calls that deregistered memory while its device still ran something, or freed memory that was registered.
int mistakes_with_registered_memory();

/// Takes all faults and settings back; memory, streams and communicators stay.
void reset();

}  // namespace emulation
