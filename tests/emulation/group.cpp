/// @file
/// The calling thread's group.

#include "group.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

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

void enqueue(const Pending& pending) {
  if (pending.stream->capture() == nullptr) pending.communicator->wait_for_proxy();
  pending.stream->submit([communicator = pending.communicator, operation = pending.operation] {
    return issued(*communicator, operation);
  });
}

/// The algorithm of an operation, as a bit: each kind of collective has one, and large all-reduces another. Messages
/// connect pairs of ranks only, who wait for each other anyway.
std::uint32_t algorithm_of(const Operation& operation) {
  constexpr std::size_t large_bytes = std::size_t{64} << 10;
  constexpr std::uint32_t of_large_all_reduces = 1U << 31;
  if (operation.kind == Operation::Kind::messages) return 0;
  const std::size_t bytes = operation.count * element_bytes(operation.type);
  if (operation.kind == Operation::Kind::all_reduce && bytes > large_bytes) return of_large_all_reduces;
  return 1U << static_cast<std::uint32_t>(operation.kind);
}

std::uint32_t algorithms_of(const std::vector<Pending>& operations) {
  std::uint32_t bits = 0;
  for (const Pending& each : operations)
    bits |= algorithm_of(each.operation);
  return bits;
}

void launch(Communicator& communicator, const std::vector<Pending>& operations, LaunchingThread thread) {
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
