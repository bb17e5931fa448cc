#pragma once
/// @file
/// Random delays, as real devices have them and tests must bear.

namespace emulation {

/// What takes its time, and at most how long.
enum class Slow {
  context,             ///< the first use of a device by a process: 3 s
  first_communicator,  ///< the initialisation of a process's first communicator: 5 s
  abort,               ///< ncclCommAbort: 3 s
  exit,                ///< the end of a process that has used a device: 3 s
  launch,              ///< the start of a thread that NCCL launches in: 3 ms, as where data loaders use all cores
};

/// Sleeps where DTRAIN_EMULATED_DELAYS has a seed. DTRAIN_EMULATED_DELAY_SCALE, such as 0.1, scales all delays. One
/// seed gives a device the same delays in each run.
void delay(Slow what, int device) noexcept;

/// Sleeps once more when the process ends.
void delay_exit(int device) noexcept;

}  // namespace emulation
