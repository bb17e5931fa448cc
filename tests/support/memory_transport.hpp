#pragma once
/// @file
/// A transport and a backend over memory endpoints, which count the bytes that each rank of the job sends.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "support/memory_endpoint.hpp"

namespace support {

/// The networks of a job's channels by their names, and the bytes of messages without headers.
class CountedNetworks {
 public:
  static constexpr int most_ranks = 8;

  static CountedNetworks& instance() {
    static CountedNetworks networks;
    return networks;
  }

  /// For a new job.
  void clear() {
    const std::lock_guard lock(mutex_);
    networks_.clear();
    for (auto& each : sent_)
      each = 0;
  }
  std::shared_ptr<MemoryNetwork> of(const std::string& channel) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<MemoryNetwork>& network = networks_[channel];
    if (!network) network = std::make_shared<MemoryNetwork>();
    return network;
  }
  std::atomic<std::uint64_t>& sent(int job_rank) { return sent_[static_cast<std::size_t>(job_rank)]; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryNetwork>> networks_;
  std::array<std::atomic<std::uint64_t>, most_ranks> sent_;
};

class CountingEndpoint : public MemoryEndpoint {
 public:
  CountingEndpoint(std::shared_ptr<MemoryNetwork> network, int rank, int size, int job_rank)
      : MemoryEndpoint(std::move(network), rank, size), sent_(CountedNetworks::instance().sent(job_rank)) {}

  MessageHandle send(std::span<const std::byte> input, int peer, dtrain::backend::message_passing::TagClass tag_class) {
    sent_ += input.size() == sizeof(dtrain::backend::Operation) ? 0 : input.size();
    return MemoryEndpoint::send(input, peer, tag_class);
  }

 private:
  std::atomic<std::uint64_t>& sent_;
};

/// For jobs that do not fail: nothing interrupts an operation.
class MemoryTransport {
 public:
  using Endpoint = CountingEndpoint;
  using ChannelContext = dtrain::backend::ChannelContext;

  static constexpr const char* backend_name() noexcept { return "the memory backend"; }
  static dtrain::backend::message_passing::Tuning tuning(const ChannelContext&) noexcept { return {}; }

  MemoryTransport(const ChannelContext& context, const std::vector<int>&, dtrain::Deadline)
      : endpoint_(CountedNetworks::instance().of(context.name), context.members.rank, context.members.world_size,
                  context.reporting_rank()) {}

  Endpoint& endpoint() noexcept { return endpoint_; }
  bool run_blocking(dtrain::backend::message_passing::Routine& routine,
                    dtrain::backend::message_passing::CancellationToken&) noexcept {
    routine.resume();
    return true;
  }
  std::pair<int, bool> waits_for() const noexcept { return {-1, true}; }
  void interrupt() noexcept {}
  void close(bool) noexcept {}

 private:
  Endpoint endpoint_;
};

struct CountingBackend {
  using Communicator = dtrain::backend::message_passing::Communicator<MemoryTransport>;
  using StreamOwner = dtrain::stream::host::CommunicationStream;

  static std::string_view name() noexcept { return "Counting"; }
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::host; }
  static constexpr bool reduces(dtrain::DType) noexcept { return true; }
  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, dtrain::Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {}) {
    return Communicator::open_blocking(context, deadline, selected);
  }
};

}  // namespace support
