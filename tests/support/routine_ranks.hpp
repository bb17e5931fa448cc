#pragma once
/// @file
/// One collective on ranks that are routines of one thread.

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

#include "dtrain/backend/message_passing/operation_context.hpp"
#include "support/element_bytes.hpp"
#include "support/routine_network.hpp"

namespace support {

using ByteVector = std::vector<std::byte>;

struct RoutineRun {
  std::vector<ByteVector> outputs;         ///< of each rank
  std::vector<RoutineNetwork::Sent> sent;  ///< by each rank
};

/// A channel whose ranks are those of the job.
inline dtrain::backend::message_passing::ChannelInfo test_channel(
    const dtrain::backend::message_passing::Tuning& tuning, std::size_t size,
    dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  dtrain::backend::message_passing::ChannelInfo channel{"test", {}, tuning, {}, accumulate};
  channel.job_ranks.resize(size);
  std::iota(channel.job_ranks.begin(), channel.job_ranks.end(), 0);
  return channel;
}

/// Runs `make(context, buffers)` on as many ranks as there are inputs. @throws what the lowest rank that fails throws
template <class Make>
RoutineRun run_routines(const dtrain::backend::message_passing::ChannelInfo& channel,
                        const dtrain::backend::Operation& operation, const std::vector<ByteVector>& inputs,
                        std::size_t output_bytes, bool in_place, Make make) {
  namespace passing = dtrain::backend::message_passing;
  struct Rank {
    Rank(RoutineNetwork& network, int number, const passing::ChannelInfo& channel,
         const dtrain::backend::Operation& operation, const ByteVector& given, std::size_t output_bytes, bool in_place)
        : input(given),
          output(in_place ? 0 : output_bytes),
          endpoint(network, number),
          context{endpoint, scratch, channel, operation},
          buffers{input.data(), in_place ? input.data() : output.data()} {}

    ByteVector input;
    ByteVector output;
    passing::Scratch scratch;
    RoutineEndpoint endpoint;
    passing::OperationContext<RoutineEndpoint> context;
    passing::Buffers buffers;
    passing::Routine routine{};
  };
  RoutineNetwork network(static_cast<int>(inputs.size()));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ranks.push_back(
        std::make_unique<Rank>(network, static_cast<int>(i), channel, operation, inputs[i], output_bytes, in_place));
    ranks[i]->routine = make(ranks[i]->context, ranks[i]->buffers);
  }
  for (const std::unique_ptr<Rank>& rank : ranks)
    rank->routine.resume();
  network.run();
  RoutineRun result;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    REQUIRE_MESSAGE(ranks[i]->routine.done(), "rank " << i << " of " << ranks.size() << " waits for ever");
    ranks[i]->routine.check();
    CHECK((in_place || ranks[i]->input == inputs[i]));
    result.outputs.push_back(in_place ? ranks[i]->input : ranks[i]->output);
  }
  result.sent = network.sent;
  return result;
}

}  // namespace support
