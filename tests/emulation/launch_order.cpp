/// @file
/// The last operation of each device.

#include "launch_order.hpp"

#include "api.hpp"

namespace emulation {
namespace {

std::array<std::atomic<Record*>, most_devices> last_starts{};

}  // namespace

LaunchTurn LaunchTurn::next(int device) {
  LaunchTurn turn;
  turn.own_ = new_record();
  turn.before_ = last_starts[static_cast<std::size_t>(device)].exchange(turn.own_, std::memory_order_acq_rel);
  return turn;
}

bool orders_launches_by_environment() noexcept {
  const char* const text = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

}  // namespace emulation
