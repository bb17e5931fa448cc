#pragma once
/// @file
/// Step record: one event of a step, and its time.

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Events of each step, in time: one `begun`; for each parameter `ready`; for each bucket `launched`, `started`,
/// `reduced`; one `waiting`; one `finished`.
enum class StepEvent : std::uint8_t {
  begun = 1,  ///< begin() was called; the time before is the program's
  ready,      ///< a gradient is ready; only if every ready() is recorded (DdpOptions::timeline)
  launched,   ///< the bucket's collective was enqueued
  started,    ///< the communication stream has reached the bucket
  reduced,    ///< the communication stream has completed the bucket
  waiting,    ///< finish() was called; later communication is not hidden
  finished,   ///< finish() returned
};

/// Size of a table that is indexed by StepEvent.
inline constexpr std::size_t step_events = static_cast<std::size_t>(StepEvent::finished) + 1;

/// "reduced".
constexpr const char* name(StepEvent event) noexcept {
  switch (event) {
    case StepEvent::begun: return "begun";
    case StepEvent::ready: return "ready";
    case StepEvent::launched: return "launched";
    case StepEvent::started: return "started";
    case StepEvent::reduced: return "reduced";
    case StepEvent::waiting: return "waiting";
    case StepEvent::finished: return "finished";
  }
  return "unknown event";
}

struct StepRecord {
  using Clock = std::chrono::steady_clock;  ///< the same for all processes of a host

  std::uint64_t step = 0;   ///< from 1
  std::uint32_t index = 0;  ///< of the parameter for `ready`, else of the bucket; 0 for events of the whole step
  StepEvent event = StepEvent::begun;
  Clock::time_point time{};

  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

}  // namespace DTRAIN_NAMESPACE::ddp
