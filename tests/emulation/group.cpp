/// @file
/// The calling thread's group.

#include "group.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "emulation.hpp"

namespace emulation {
namespace {

struct Pending {
  Communicator* communicator;
  Stream* stream;
  Operation operation;
};

struct Group {
  int depth = 0;
  std::vector<Pending> operations;
  std::vector<Communicator*> initialising;
};
thread_local Group group;

std::atomic<int> launches{0};

void enqueue(const Pending& pending) {
  if (pending.stream->capture() == nullptr) pending.communicator->wait_for_proxy();
  pending.stream->submit([communicator = pending.communicator, operation = pending.operation] {
    return issued(*communicator, operation);
  });
}

/// The algorithms of operations that are launched together, a bit each: one of each kind of collective; for many bytes
/// of those that NVLink SHARP has kernels for another, and a third where they multiply, as averages do. NCCL adds up
/// the bytes of one kind (src/enqueue.cc, ncclPrepareTasks). Messages connect pairs of ranks only, who wait for each
/// other anyway.
std::uint32_t algorithms_of(const std::vector<Pending>& operations) {
  using Kind = Operation::Kind;
  constexpr std::size_t large_bytes = std::size_t{64} << 10;
  const auto bytes_of_kind = [&operations](const Operation& wanted) {
    std::size_t bytes = 0;
    for (const auto& [communicator, stream, each] : operations) {
      const bool has_blocks = each.kind == Kind::reduce_scatter || each.kind == Kind::all_gather;
      const auto blocks = static_cast<std::size_t>(has_blocks ? communicator->size() : 1);
      if (each.kind == wanted.kind) bytes += each.count * element_bytes(each.type) * blocks;
    }
    return bytes;
  };
  std::uint32_t bits = 0;
  for (const Pending& pending : operations) {
    const Operation& each = pending.operation;
    if (each.kind == Kind::messages) continue;
    const bool is_large =
        each.kind != Kind::reduce && each.kind != Kind::broadcast && bytes_of_kind(each) > large_bytes;
    const std::uint32_t which = !is_large ? 0 : each.reduction.is_scaled ? 2 : 1;
    bits |= 1U << (8 * which + static_cast<std::uint32_t>(each.kind));
  }
  return bits;
}

void launch(Communicator& communicator, const std::vector<Pending>& operations, LaunchingThread thread) {
  launches.fetch_add(1, std::memory_order_relaxed);
  const bool is_captured = std::any_of(operations.begin(), operations.end(),
                                       [](const Pending& each) { return each.stream->capture() != nullptr; });
  communicator.launch({algorithms_of(operations), is_captured, thread}, [operations] {
    for (const Pending& each : operations)
      enqueue(each);
  });
}

/// All messages of one communicator and stream become one operation, at the place of the first.
std::vector<Pending> with_messages_joined(std::vector<Pending> all) {
  std::vector<Pending> joined;
  for (Pending& each : all) {
    const auto same = std::find_if(joined.begin(), joined.end(), [&](const Pending& other) {
      return other.operation.kind == Operation::Kind::messages && other.communicator == each.communicator &&
             other.stream == each.stream;
    });
    if (each.operation.kind != Operation::Kind::messages || same == joined.end()) {
      joined.push_back(std::move(each));
    } else {
      same->operation.messages.push_back(each.operation.messages.front());
    }
  }
  return joined;
}

ncclResult_t end_group() {
  const Group ended = std::exchange(group, Group{});
  ncclResult_t result = ncclSuccess;
  const auto note = [&](ncclResult_t each) {
    if (result == ncclSuccess || result == ncclInProgress) result = each == ncclSuccess ? result : each;
  };
  const std::vector<Pending> operations = with_messages_joined(ended.operations);
  std::vector<Communicator*> used;
  for (const Pending& pending : operations) {
    if (std::find(used.begin(), used.end(), pending.communicator) == used.end()) used.push_back(pending.communicator);
  }
  const LaunchingThread thread = LaunchingThread::next();
  for (Communicator* communicator : used) {
    std::vector<Pending> own;
    std::copy_if(operations.begin(), operations.end(), std::back_inserter(own),
                 [&](const Pending& each) { return each.communicator == communicator; });
    launch(*communicator, own, thread);
    note(communicator->in_progress_for_a_while());
  }
  for (Communicator* communicator : ended.initialising)
    note(await_init(*communicator));
  return result;
}

}  // namespace

int nccl_launches() {
  return launches.load(std::memory_order_relaxed);
}

ncclResult_t submit(Communicator& communicator, Stream& stream, Operation operation) {
  if (group.depth > 0) {
    group.operations.push_back({&communicator, &stream, std::move(operation)});
    return ncclSuccess;
  }
  launch(communicator, {{&communicator, &stream, std::move(operation)}}, LaunchingThread::next());
  return communicator.in_progress_for_a_while();
}

ncclResult_t await_init(Communicator& communicator) {
  if (group.depth > 0) {
    group.initialising.push_back(&communicator);
    return ncclSuccess;
  }
  if (!communicator.is_blocking()) return ncclInProgress;
  communicator.block_while_in_progress();
  return communicator.state();
}

}  // namespace emulation

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t refused = emulation::nccl_admitted("ncclGroupStart")) return refused;
  ++emulation::group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const emulation::RuntimeScope scope;
  if (const ncclResult_t refused = emulation::nccl_admitted("ncclGroupEnd")) return refused;
  if (emulation::group.depth == 0) return ncclInvalidUsage;
  if (--emulation::group.depth > 0) return ncclSuccess;
  return emulation::end_group();
}
