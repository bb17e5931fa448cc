/// @file
/// An operation's place among the communicator's others, and what a test lets go wrong with it.

#include "operation.hpp"

#include <csignal>

#include "api.hpp"
#include "emulation.hpp"
#include "launch_order.hpp"

namespace emulation {
namespace {

/// Whether the operation may go on.
bool survives_fault(Communicator& communicator) {
  if (is_broken(communicator.device())) return false;
  const int fault = fault_of_next_operation(communicator.device());
  if (fault < 0) return true;
  if (static_cast<Fault>(fault) == Fault::kill) ::raise(SIGKILL);
  if (static_cast<Fault>(fault) == Fault::async_error) {
    communicator.fail(ncclRemoteError, "an asynchronous error that a test asked for");
  }
  communicator.hang();
  return false;
}

}  // namespace

void mismatched(Communicator& communicator) {
  if (mismatches_are_reported()) {
    communicator.fail(ncclInvalidUsage, "the ranks' operations do not fit together");
  }
  communicator.hang();
}

Work issued(Communicator& communicator, const Operation& operation) {
  const std::uint64_t place = communicator.issue();
  const bool has_turn = communicator.orders_launches() && communicator.size() > 1;  // NCCL runs one rank's apart
  const LaunchTurn turn = has_turn ? LaunchTurn::next(communicator.device()) : LaunchTurn();
  return [&communicator, operation, place, turn] {
    turn.start();
    if (communicator.start(place) && survives_fault(communicator)) {
      count_traffic(communicator, operation);
      if (operation.kind == Operation::Kind::messages)
        run_messages(communicator, operation.messages);
      else
        run_collective(communicator, operation);
    }
    communicator.finish(place);
  };
}

}  // namespace emulation
