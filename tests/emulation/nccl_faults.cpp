/// @file
/// What tests let NCCL do wrong.

#include "api.hpp"
#include "communicator.hpp"
#include "emulation.hpp"
#include "group.hpp"
#include "launch_order.hpp"
#include "operation.hpp"

namespace emulation {
namespace {

std::atomic<int> planned_fault{-1};
std::atomic<int> planned_place{0};
std::atomic<int> planned_device{any_device};
std::atomic<bool> hanging_init{false};
std::atomic<bool> failing_init{false};
std::atomic<int> hanging_device{any_device};
std::atomic<bool> reported_mismatches{false};
std::atomic<bool> reported_deaths{false};
std::atomic<bool> held_launches{variable_is("DTRAIN_EMULATED_LAUNCHES", "held")};
std::atomic<int> launches_in_hold{0};
std::atomic<int> polls{1};
std::atomic<int> calls_at_once{0};
std::atomic<int> init_count{0};
std::atomic<int> one_rank_kernels{0};

struct CountedTraffic {
  std::atomic<std::size_t> all_reduced{0};
  std::atomic<std::size_t> reduce_scattered{0};
  std::atomic<std::size_t> gathered{0};
  std::atomic<std::size_t> other{0};
};
std::array<CountedTraffic, most_devices> traffic_counts;

constexpr auto relaxed = std::memory_order_relaxed;

bool fits(const std::atomic<int>& wanted, int device) noexcept {
  return wanted.load(relaxed) == any_device || wanted.load(relaxed) == device;
}

}  // namespace

void fault_in_operation(Fault fault, int nth, int device) {
  planned_fault.store(static_cast<int>(fault), relaxed);
  planned_device.store(device, relaxed);
  planned_place.store(nth, relaxed);
}

int fault_of_next_operation(int device) noexcept {
  if (planned_place.load(relaxed) <= 0 || !fits(planned_device, device)) return -1;
  return planned_place.fetch_sub(1, relaxed) == 1 ? planned_fault.load(relaxed) : -1;
}

void count_traffic(const Communicator& communicator, const Operation& operation) noexcept {
  CountedTraffic& counts = traffic_counts[static_cast<std::size_t>(communicator.device())];
  const std::size_t own = operation.count * element_bytes(operation.type);
  const std::size_t all = own * static_cast<std::size_t>(communicator.size());
  switch (operation.kind) {
    case Operation::Kind::all_reduce: counts.all_reduced.fetch_add(own, relaxed); break;
    case Operation::Kind::reduce_scatter: counts.reduce_scattered.fetch_add(all, relaxed); break;
    case Operation::Kind::all_gather: counts.gathered.fetch_add(all, relaxed); break;
    case Operation::Kind::reduce:
    case Operation::Kind::broadcast: counts.other.fetch_add(own, relaxed); break;
    case Operation::Kind::messages:
      for (const Message& message : operation.messages)
        counts.other.fetch_add(message.bytes, relaxed);
      break;
  }
}
Traffic traffic(int device) {
  const CountedTraffic& counts = traffic_counts[static_cast<std::size_t>(device)];
  return {counts.all_reduced.load(relaxed), counts.reduce_scattered.load(relaxed), counts.gathered.load(relaxed),
          counts.other.load(relaxed)};
}

void count_initialisation() noexcept {
  init_count.fetch_add(1, relaxed);
}
int initialisations() {
  return init_count.load(relaxed);
}

void count_kernel_of_one_rank() noexcept {
  one_rank_kernels.fetch_add(1, relaxed);
}
int kernels_of_one_rank() {
  return one_rank_kernels.load(relaxed);
}

void init_never_completes(bool never, int device) {
  hanging_device.store(device, relaxed);
  hanging_init.store(never, relaxed);
}
bool init_is_to_hang(int device) noexcept {
  static const bool all_hang = variable_is("DTRAIN_EMULATED_INIT", "hangs");
  return all_hang || (hanging_init.load(relaxed) && fits(hanging_device, device));
}

void init_fails(bool fails, int device) {
  hanging_device.store(device, relaxed);
  failing_init.store(fails, relaxed);
}
bool init_is_to_fail(int device) noexcept {
  return failing_init.load(relaxed) && fits(hanging_device, device);
}

void set_mismatch(Mismatch mismatch) {
  reported_mismatches.store(mismatch == Mismatch::report, relaxed);
}
bool mismatches_are_reported() noexcept {
  return reported_mismatches.load(relaxed);
}

void set_dead_ranks_reported(bool reported) {
  reported_deaths.store(reported, relaxed);
}
bool dead_ranks_are_reported() noexcept {
  return reported_deaths.load(relaxed);
}

void set_polls_in_progress(int wanted) {
  polls.store(wanted, relaxed);
}
int polls_in_progress() noexcept {
  return polls.load(relaxed);
}

void hold_launches(bool held) {
  held_launches.store(held);
}
void wait_while_launches_are_held() noexcept {
  launches_in_hold.fetch_add(1);
  while (held_launches.load())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  launches_in_hold.fetch_sub(1);
}
int launches_held() {
  return held_launches.load() ? launches_in_hold.load() : 0;
}

int concurrent_calls() {
  return calls_at_once.load(relaxed);
}

InsideCall::InsideCall(Communicator& communicator) noexcept : communicator_(communicator) {
  if (communicator.calls_inside.fetch_add(1, relaxed) > 0) calls_at_once.fetch_add(1, relaxed);
}

void reset_nccl() noexcept {
  planned_place.store(0, relaxed);
  hanging_init.store(false, relaxed);
  reported_mismatches.store(false, relaxed);
  reported_deaths.store(false, relaxed);
  held_launches.store(false);
  polls.store(1, relaxed);
  calls_at_once.store(0, relaxed);
  failing_init.store(false, relaxed);
  init_count.store(0, relaxed);
  one_rank_kernels.store(0, relaxed);
  for (CountedTraffic& counts : traffic_counts) {
    for (std::atomic<std::size_t>* const count :
         {&counts.all_reduced, &counts.reduce_scattered, &counts.gathered, &counts.other})
      count->store(0, relaxed);
  }
  forget_mistakes_with_memory();
}

}  // namespace emulation
