/// @file
/// Collectives: in each step all ranks write a piece of their input where all can read it, then read what they need.

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "operation.hpp"

namespace emulation {
namespace {

/// One rank's part in one collective; offsets and lengths are of elements.
class Collective {
 public:
  Collective(Communicator& communicator, const Operation& operation)
      : communicator_(communicator), operation_(operation), element_(element_bytes(operation.type)) {
    if (operation.scalar_address != nullptr) {
      reduction_ = {ncclSum, true, scalar_at(operation.scalar_address, operation.type)};
    } else {
      reduction_ = operation.reduction;
    }
  }

  void run() {
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    const std::size_t pieces = operation_.kind == Operation::Kind::reduce_scatter ? ranks : 1;
    const std::size_t most = chunk_bytes / (pieces * element_);
    for (std::size_t offset = 0; offset < operation_.count; offset += most) {
      if (!step(offset, std::min(most, operation_.count - offset))) return;
    }
  }

 private:
  bool is_root() const { return communicator_.rank() == operation_.root; }

  bool step(std::size_t offset, std::size_t length) {
    const std::uint64_t number = ++communicator_.steps;
    if (!communicator_.wait_for_all([&](RankCell& cell) { return cell.read.load() >= number - 1; })) return false;
    communicator_.own().call = call();
    write(offset, length);
    communicator_.own().written.store(number);
    communicator_.notify_ranks();
    if (!communicator_.wait_for_all([&](RankCell& cell) { return cell.written.load() >= number; })) return false;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      if (communicator_.cell(rank).call == call()) continue;
      mismatched(communicator_);
      return false;
    }
    read(offset, length);
    communicator_.own().read.store(number);
    communicator_.notify_ranks();
    return true;
  }

  CallMade call() const {
    return {static_cast<std::uint32_t>(operation_.kind), operation_.type, operation_.named_reduction, operation_.root};
  }

  void write(std::size_t offset, std::size_t length) {
    std::byte* const own = communicator_.chunk(communicator_.rank());
    if (operation_.kind == Operation::Kind::reduce_scatter) {
      for (std::size_t part = 0; part < static_cast<std::size_t>(communicator_.size()); ++part)
        copy(own + part * length * element_, operation_.from + (part * operation_.count + offset) * element_, length);
    } else if (operation_.kind != Operation::Kind::broadcast || is_root()) {
      copy(own, operation_.from + offset * element_, length);
    }
  }

  void read(std::size_t offset, std::size_t length) {
    std::byte* const to = operation_.to + offset * element_;
    switch (operation_.kind) {
      case Operation::Kind::all_reduce: reduce_chunks(0, to, length); break;
      case Operation::Kind::reduce:
        if (is_root()) reduce_chunks(0, to, length);
        break;
      case Operation::Kind::reduce_scatter:
        reduce_chunks(static_cast<std::size_t>(communicator_.rank()) * length * element_, to, length);
        break;
      case Operation::Kind::broadcast: copy(to, communicator_.chunk(operation_.root), length); break;
      case Operation::Kind::all_gather:
        for (int rank = 0; rank < communicator_.size(); ++rank)
          copy(to + static_cast<std::size_t>(rank) * operation_.count * element_, communicator_.chunk(rank), length);
        break;
      case Operation::Kind::messages: break;
    }
  }

  void reduce_chunks(std::size_t at, std::byte* to, std::size_t length) {
    std::array<const std::byte*, most_ranks> inputs{};
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    for (std::size_t rank = 0; rank < ranks; ++rank)
      inputs[rank] = communicator_.chunk(static_cast<int>(rank)) + at;
    reduce(operation_.type, reduction_, std::span(inputs).first(ranks), to, length);
  }

  void copy(std::byte* to, const std::byte* from, std::size_t length) const {
    std::memcpy(to, from, length * element_);
  }

  Communicator& communicator_;
  const Operation& operation_;
  std::size_t element_;
  Reduction reduction_;
};

}  // namespace

void run_collective(Communicator& communicator, const Operation& operation) {
  Collective(communicator, operation).run();
}

}  // namespace emulation
