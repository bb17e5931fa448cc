/// @file
/// The emulated devices and the calling thread's choice among them.

#include "api.hpp"
#include "delays.hpp"
#include "emulation.hpp"
#include "futex.hpp"

namespace emulation {

bool in_runtime() noexcept {
  return runs_runtime;
}

namespace {

std::atomic<int> wanted_count{-1};
std::atomic<bool> memory_operations{true};

enum class Context : std::uint32_t { none, being_made, made };
struct DeviceContext {
  std::atomic<Context> state{Context::none};
  std::atomic<std::uint32_t> changes{0};
};
std::array<DeviceContext, most_devices> contexts{};
DeviceContext& context_of(int device) noexcept {
  return contexts[static_cast<std::size_t>(device)];
}

std::array<std::atomic<bool>, most_devices> broken_devices{};

thread_local int chosen_device = 0;

int machine_devices() noexcept {
  const int wanted = wanted_count.load(std::memory_order_relaxed);
  if (wanted >= 0) return std::min(wanted, most_devices);
  const char* text = std::getenv("DTRAIN_EMULATED_DEVICES");
  return text == nullptr ? 1 : std::clamp(std::atoi(text), 0, most_devices);
}

/// The devices' numbers on the machine; as with CUDA, the list ends at the first that there is not.
std::vector<int> visible_devices() {
  std::vector<int> visible;
  const int there = machine_devices();
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < there; ++device)
      visible.push_back(device);
    return visible;
  }
  while (*list != '\0') {
    char* end = nullptr;
    const long device = std::strtol(list, &end, 10);
    if (end == list || device < 0 || device >= there) break;
    visible.push_back(static_cast<int>(device));
    list = *end == ',' ? end + 1 : end;
  }
  return visible;
}

}  // namespace

int device_count() noexcept {
  return static_cast<int>(visible_devices().size());
}

int physical_device(int device) noexcept {
  const std::vector<int> visible = visible_devices();
  const auto index = static_cast<std::size_t>(device);
  return index < visible.size() ? visible[index] : device;
}

void reset_devices() noexcept {
  set_device_count(-1);
  set_stream_memory_operations(true);
  for (std::atomic<bool>& broken : broken_devices)
    broken.store(false, std::memory_order_relaxed);
}

void break_device(int device) {
  broken_devices[static_cast<std::size_t>(device)].store(true, std::memory_order_relaxed);
}
bool is_broken(int device) noexcept {
  return broken_devices[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
}

int current_device() noexcept {
  return chosen_device;
}
void set_current_device(int device) noexcept {
  chosen_device = device;
}

// Relaxed: a context is no order for who uses it.
void make_context(int device) noexcept {
  DeviceContext& context = context_of(device);
  Context seen = Context::none;
  if (context.state.compare_exchange_strong(seen, Context::being_made, std::memory_order_relaxed)) {
    delay(Slow::context, device);
    delay_exit(device);
    context.state.store(Context::made, std::memory_order_relaxed);
    notify(context.changes);
  } else if (seen == Context::being_made) {
    wait_until(context.changes, [&] { return context.state.load(std::memory_order_relaxed) == Context::made; });
  }
}
void drop_context(int device) {
  context_of(device).state.store(Context::none, std::memory_order_relaxed);
}
bool has_context(int device) {
  return context_of(device).state.load(std::memory_order_relaxed) == Context::made;
}

void set_device_count(int devices) {
  wanted_count.store(devices, std::memory_order_relaxed);
}

bool has_stream_memory_operations() noexcept {
  return memory_operations.load(std::memory_order_relaxed);
}
void set_stream_memory_operations(bool there) {
  memory_operations.store(there, std::memory_order_relaxed);
}

}  // namespace emulation
