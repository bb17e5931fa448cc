/// @file
/// The last operation of each device, and the last thread that launched there.

#include "launch_order.hpp"

#include "api.hpp"

namespace emulation {
namespace {

std::array<std::atomic<Record*>, most_devices> last_starts{};
std::array<std::atomic<std::uint64_t>, most_devices> last_threads{};

}  // namespace

bool variable_is(const char* name, const char* wanted) noexcept {
  const char* const text = std::getenv(name);
  return text != nullptr && std::strcmp(text, wanted) == 0;
}

LaunchTurn LaunchTurn::next(int device) {
  LaunchTurn turn;
  turn.own_ = new_record();
  turn.before_ = last_starts[static_cast<std::size_t>(device)].exchange(turn.own_, std::memory_order_acq_rel);
  return turn;
}

LaunchingThread LaunchingThread::next() noexcept {
  static std::atomic<std::uint64_t> last{0};
  LaunchingThread thread;
  thread.number_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return thread;
}

LiveLaunch::LiveLaunch(int device, LaunchingThread thread) noexcept : device_(device), number_(thread.number_) {
  last_threads[static_cast<std::size_t>(device)].store(number_, std::memory_order_relaxed);
}

bool LiveLaunch::is_fatal_race() const noexcept {
  const std::uint64_t last = last_threads[static_cast<std::size_t>(device_)].load(std::memory_order_relaxed);
  return last != number_ && !variable_is("NCCL_LAUNCH_RACE_FATAL", "0");
}

bool orders_launches_by_environment() noexcept {
  return variable_is("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
}

}  // namespace emulation
