/// @file
/// The seed and its numbers.

#include "delays.hpp"

#include "api.hpp"

namespace emulation {
namespace {

constexpr std::array<double, 5> most_seconds{3, 5, 3, 3, 0.003};

struct Settings {
  bool are_wanted = false;
  std::uint64_t seed = 0;
  double scale = 1;

  Settings() noexcept {
    if (const char* const text = std::getenv("DTRAIN_EMULATED_DELAYS")) {
      are_wanted = true;
      seed = std::strtoull(text, nullptr, 10);
    }
    if (const char* const text = std::getenv("DTRAIN_EMULATED_DELAY_SCALE")) scale = std::strtod(text, nullptr);
  }
};

const Settings& settings() noexcept {
  static const Settings only;
  return only;
}

/// SplitMix64 (Guy Steele and others, 2014): from 0 to 1.
double random_number(std::uint64_t state) noexcept {
  state += 0x9E3779B97F4A7C15U;
  state = (state ^ (state >> 30U)) * 0xBF58476D1CE4E5B9U;
  state = (state ^ (state >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<double>((state ^ (state >> 31U)) >> 11U) / static_cast<double>(std::uint64_t{1} << 53U);
}

std::array<std::array<std::atomic<std::uint64_t>, most_devices>, most_seconds.size()> counts{};
std::atomic<int> exiting_device{0};

}  // namespace

void delay(Slow what, int device) noexcept {
  if (!settings().are_wanted) return;
  const auto kind = static_cast<std::size_t>(what);
  const auto place = static_cast<std::uint64_t>(physical_device(device));
  const std::uint64_t count = counts[kind][place].fetch_add(1, std::memory_order_relaxed);
  const double share = random_number((settings().seed << 32U) ^ (count << 12U) ^ (place << 4U) ^ kind);
  std::this_thread::sleep_for(std::chrono::duration<double>(share * most_seconds[kind] * settings().scale));
}

void delay_exit(int device) noexcept {
  if (!settings().are_wanted) return;
  exiting_device.store(device, std::memory_order_relaxed);
  static const int registered = std::atexit([] { delay(Slow::exit, exiting_device.load(std::memory_order_relaxed)); });
  static_cast<void>(registered);
}

}  // namespace emulation
