#include "dtrain/topology/flat.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/communicator_archetypes.hpp"

namespace {

using archetype::CommunicatorLacks;
using dtrain::topology::Flat;

/// A topology as later ones will be: it needs abilities that not every backend has.
struct SendRecvTopology {
  static constexpr std::string_view name() noexcept { return "SendRecvTopology"; }
  template <class C>
  static constexpr bool works_on = dtrain::backend::CanSendRecv<C>;
  template <class C>
  static constexpr void require() noexcept {}
  template <dtrain::backend::CanSendRecv C>
  static void all_reduce(C&, dtrain::ConstBufferView, dtrain::BufferView, dtrain::ReduceOp, typename C::Stream) {}
};

struct Nameless {
  template <class C>
  [[maybe_unused]] static constexpr bool works_on = true;
};

struct NeedsUnsaid {
  static constexpr std::string_view name() noexcept { return "NeedsUnsaid"; }
};

struct RecordingCommunicator : archetype::Communicator<> {
  struct Call {
    const std::byte* input;
    std::byte* output;
    std::size_t count;
    dtrain::ReduceOp op;
  };
  void all_reduce(dtrain::ConstBufferView input, dtrain::BufferView output, dtrain::ReduceOp op, Stream) {
    calls.push_back({input.data, output.data, output.count, op});
  }
  std::vector<Call> calls;
};

TEST_CASE("a topology has a name and says what it needs") {
  CHECK(dtrain::topology::Topology<Flat>);
  CHECK(dtrain::topology::Topology<SendRecvTopology>);
  CHECK_FALSE(dtrain::topology::Topology<Nameless>);
  CHECK_FALSE(dtrain::topology::Topology<NeedsUnsaid>);
  CHECK_FALSE(dtrain::topology::Topology<int>);
}

TEST_CASE("a topology works on a communicator that has the abilities it needs, and on no other") {
  CHECK(dtrain::topology::WorksOn<Flat, archetype::Communicator<>>);
  CHECK(dtrain::topology::WorksOn<Flat, archetype::Communicator<CommunicatorLacks::send>>);
  CHECK_FALSE(dtrain::topology::WorksOn<Flat, archetype::Communicator<CommunicatorLacks::all_reduce>>);
  CHECK(dtrain::topology::WorksOn<SendRecvTopology, archetype::Communicator<>>);
  CHECK_FALSE(dtrain::topology::WorksOn<SendRecvTopology, archetype::Communicator<CommunicatorLacks::recv>>);
}

TEST_CASE("Flat hands a reduction to the communicator unchanged") {
  RecordingCommunicator communicator;
  std::vector<float> input(5);
  std::vector<float> output(5);
  const auto view = dtrain::buffer_view(std::span(output));
  Flat::all_reduce(communicator, dtrain::buffer_view(std::span<const float>(input)), view, dtrain::ReduceOp::max, {});
  REQUIRE(communicator.calls.size() == 1);
  CHECK(communicator.calls[0].input == reinterpret_cast<const std::byte*>(input.data()));
  CHECK(communicator.calls[0].output == view.data);
  CHECK(communicator.calls[0].count == 5);
  CHECK(communicator.calls[0].op == dtrain::ReduceOp::max);
}

}  // namespace
