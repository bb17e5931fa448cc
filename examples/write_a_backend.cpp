// A backend of one's own in one file: a way from rank to rank. dtrain's collectives, topologies, checks and failures
// run over it. These messages go through the job's key-value store: slow, but on any number of hosts. A real one
// replaces Endpoint.
//   write_a_backend --nproc-per-node=2

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#if __has_include(<dtrain/backend/message_passing/communicator.hpp>)
#include <dtrain/backend/message_passing/communicator.hpp>
#endif
#include <dtrain/dtrain.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace store_messages {

namespace message_passing = dtrain::backend::message_passing;
using message_passing::TagClass;

/// One rank's messages in a channel; see message_passing::Endpoint. A message is one or more values of the store. All
/// but its last have `piece_bytes`, the last has fewer.
class Endpoint {
 public:
  struct MessageHandle {
    std::span<std::byte> output{};  ///< of a receiver
    int sender = -1;                ///< -1: this rank, whose message the store has already
    TagClass tag_class{};
    std::uint64_t number = 0;
    std::size_t bytes = 0;
  };

  explicit Endpoint(const dtrain::backend::ChannelContext& context) : context_(context) {}

  int rank() const noexcept { return context_.members.rank; }
  int size() const noexcept { return context_.members.world_size; }
  message_passing::FramePool& frames() noexcept { return frames_; }

  /// The store keeps the message, so it is complete at once.
  MessageHandle send(std::span<const std::byte> input, int peer, TagClass tag_class) {
    const std::uint64_t number = sent_[{peer, tag_class}]++;
    const std::string_view bytes(reinterpret_cast<const char*>(input.data()), input.size());
    for (std::size_t offset = 0; offset <= bytes.size(); offset += piece_bytes) {
      context_.store.set_blocking(key(rank(), peer, tag_class, number, offset),
                                  std::string(bytes.substr(offset, piece_bytes)), deadline());
    }
    return {.bytes = input.size()};
  }

  /// Only notes what is wanted: done() fetches it.
  MessageHandle recv(std::span<std::byte> output, int peer, TagClass tag_class) {
    return {.output = output, .sender = peer, .tag_class = tag_class, .number = received_[{peer, tag_class}]++};
  }

  /// Blocks in await_ready(). A routine that is cancelled suspends here, and is never resumed.
  struct Awaiter {
    Endpoint& endpoint;
    MessageHandle message;
    bool await_ready() { return message.sender < 0 || endpoint.fetch(message); }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    std::size_t await_resume() const noexcept { return message.bytes; }
  };
  Awaiter done(MessageHandle message) noexcept { return {*this, message}; }

  message_passing::CancellationToken* waiting = nullptr;  ///< of the operation that runs
  int awaited = -1;                                       ///< the last rank from which a message was fetched

 private:
  using Counts = std::map<std::pair<int, TagClass>, std::uint64_t>;

  static constexpr std::size_t piece_bytes = std::size_t{256} << 10;  // a value of the store is bounded

  std::string key(int from, int to, TagClass tag_class, std::uint64_t number, std::size_t offset) const {
    std::string made = context_.name;
    for (const std::uint64_t part : {static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
                                     static_cast<std::uint64_t>(tag_class), number, std::uint64_t{offset}}) {
      made += '/' + std::to_string(part);
    }
    return made;
  }

  dtrain::Deadline deadline() const { return dtrain::Deadline::after(context_.timeout); }

  /// @returns false if the operation is cancelled
  bool fetch(MessageHandle& message) {
    awaited = message.sender;
    std::string piece;
    do {
      const std::string name = key(message.sender, rank(), message.tag_class, message.number, message.bytes);
      if (!wait_for(name, piece)) return false;
      context_.store.erase_blocking(name, deadline());
      if (piece.size() > message.output.size() - message.bytes) {
        throw dtrain::Error(dtrain::Errc::disagreement, "rank " + std::to_string(message.sender) +
                                                            " sends more than the " +
                                                            std::to_string(message.output.size()) +
                                                            " bytes that rank " + std::to_string(rank()) + " receives");
      }
      if (!piece.empty()) std::memcpy(message.output.data() + message.bytes, piece.data(), piece.size());
      message.bytes += piece.size();
    } while (piece.size() == piece_bytes);
    return true;
  }

  /// In short turns, between which the operation may be cancelled.
  bool wait_for(const std::string& name, std::string& value) {
    while (!waiting->cancelled()) {
      try {
        value = context_.store.get_blocking(name, dtrain::Deadline::after(std::chrono::milliseconds(20)));
        return true;
      } catch (const dtrain::Error& error) {
        if (error.code() != dtrain::Errc::timeout) throw;
      }
      waiting->stalled();
    }
    return false;
  }

  dtrain::backend::ChannelContext context_;
  message_passing::FramePool frames_;
  Counts sent_, received_;  ///< by peer
};

/// Runs one channel's operations; see message_passing::Transport.
class Transport {
 public:
  using Endpoint = store_messages::Endpoint;

  static constexpr const char* backend_name() noexcept { return "StoreMessages"; }
  static message_passing::Tuning tuning(const dtrain::backend::ChannelContext&) noexcept { return {}; }

  Transport(const dtrain::backend::ChannelContext& context, const std::vector<int>&, dtrain::Deadline)
      : endpoint_(context) {
    context.failure->throw_if_failed(context.reporting_rank());
  }

  Endpoint& endpoint() noexcept { return endpoint_; }

  /// @returns true: nothing uses the operation's memory afterwards, whether it was cancelled or not
  bool run_blocking(message_passing::Routine& routine, message_passing::CancellationToken& token) noexcept {
    endpoint_.waiting = &token;
    routine.resume();
    return true;
  }

  std::pair<int, bool> waits_for() const noexcept { return {endpoint_.awaited, true}; }
  void interrupt() noexcept {}  // a wait looks every 20 ms
  void close(bool) noexcept {}

 private:
  Endpoint endpoint_;
};

/// What a Policy names.
struct Backend {
  using Communicator = message_passing::Communicator<Transport>;
  using StreamOwner = dtrain::stream::host::CommunicationStream;

  static constexpr auto determinism = dtrain::backend::Determinism::for_a_plan;  // lengths select the algorithm
  static constexpr std::string_view name() noexcept { return "StoreMessages"; }
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::host; }
  static constexpr bool reduces(dtrain::DType dtype) noexcept { return !is_float8(dtype); }

  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, dtrain::Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {}) {
    return Communicator::open_blocking(context, deadline, selected);
  }
};

// Where something is missing, the compiler names it.
static_assert(message_passing::Transport<Transport>);
static_assert(dtrain::backend::Backend<Backend>);

}  // namespace store_messages

using Policy = dtrain::Policy<dtrain::launch::PerNode, store_messages::Backend, dtrain::topology::Flat>;

/// One number that is to become 3.
struct Model {
  float value = 0;
  float gradient = 0;

  std::vector<dtrain::Parameter> parameters() {
    return {{"value", dtrain::tensor_view(&value, {1}), dtrain::tensor_view(&gradient, {1})}};
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    std::vector<double> ranks(100000, group.rank());  // more than one piece of the store's
    group.all_reduce(ranks, dtrain::ReduceOp::sum);

    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 40; ++step) {
      ddp.backward([&](dtrain::Ready ready) {
        // Ranks see other targets, whose mean is 3.
        const float target = 3 + static_cast<float>(group.rank()) - static_cast<float>(group.world_size() - 1) / 2;
        model.gradient = model.value - target;
        ready(0);
      });
      model.value -= 0.5F * model.gradient;
    }
    std::printf("rank %d of %d: sum %.0f, value %.4f\n", group.rank(), group.world_size(), ranks.back(), model.value);
    return 0;
  });
}
