#include "support/communicator_archetypes.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using archetype::CommunicatorLacks;

/// The abilities of a type, in the order of their names below.
template <class C>
constexpr std::array<bool, 12> abilities{
    backend::HasRanks<C>,         backend::CanAllReduce<C>, backend::CanBroadcast<C>,      backend::CanBarrier<C>,
    backend::CanReduceScatter<C>, backend::CanAllGather<C>, backend::CanExchangeBlocks<C>, backend::CanReduceBlocks<C>,
    backend::CanSendRecv<C>,      backend::CanSplit<C>,     backend::CanAllocate<C>,       backend::CanAbort<C>};

constexpr std::array<const char*, 12> names{"HasRanks",         "CanAllReduce", "CanBroadcast",      "CanBarrier",
                                            "CanReduceScatter", "CanAllGather", "CanExchangeBlocks", "CanReduceBlocks",
                                            "CanSendRecv",      "CanSplit",     "CanAllocate",       "CanAbort"};

/// "CanAllReduce" if that is the only ability that `Lack` takes away.
template <CommunicatorLacks Lack>
std::string missing() {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!abilities<archetype::Communicator<Lack>>[i]) {
      text += (text.empty() ? "" : " ") + std::string(names[i]);
    }
  }
  return text;
}

template <CommunicatorLacks Lack>
inline constexpr bool is_communicator = backend::Communicator<archetype::Communicator<Lack>>;

}  // namespace

TEST_CASE("a type with every ability is a communicator and lacks none") {
  CHECK(is_communicator<CommunicatorLacks::nothing>);
  CHECK(missing<CommunicatorLacks::nothing>().empty());
}

TEST_CASE("each lack takes away exactly the ability of that name") {
  CHECK(missing<CommunicatorLacks::all_reduce>() == "CanAllReduce");
  CHECK(missing<CommunicatorLacks::broadcast>() == "CanBroadcast");
  CHECK(missing<CommunicatorLacks::barrier>() == "CanBarrier");
  CHECK(missing<CommunicatorLacks::reduce_scatter>() == "CanReduceScatter");
  CHECK(missing<CommunicatorLacks::all_gather>() == "CanAllGather");
  CHECK(missing<CommunicatorLacks::exchange_blocks>() == "CanExchangeBlocks");
  CHECK(missing<CommunicatorLacks::reduce_blocks>() == "CanReduceBlocks");
  CHECK(missing<CommunicatorLacks::send>() == "CanSendRecv");
  CHECK(missing<CommunicatorLacks::recv>() == "CanSendRecv");
  CHECK(missing<CommunicatorLacks::send_recv>() == "CanSendRecv");
  CHECK(missing<CommunicatorLacks::split>() == "CanSplit");
  CHECK(missing<CommunicatorLacks::members>() == "CanSplit");
  CHECK(missing<CommunicatorLacks::allocate>() == "CanAllocate");
  CHECK(missing<CommunicatorLacks::abort>() == "CanAbort");
  CHECK(missing<CommunicatorLacks::failure>() == "CanAbort");
}

TEST_CASE("what data-parallel training needs makes a communicator; the rest are further abilities") {
  CHECK_FALSE(is_communicator<CommunicatorLacks::ranks>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::moving>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::all_reduce>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::broadcast>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::barrier>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::allocate>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::abort>);
  CHECK_FALSE(is_communicator<CommunicatorLacks::failure>);
  CHECK(is_communicator<CommunicatorLacks::reduce_scatter>);
  CHECK(is_communicator<CommunicatorLacks::all_gather>);
  CHECK(is_communicator<CommunicatorLacks::exchange_blocks>);
  CHECK(is_communicator<CommunicatorLacks::reduce_blocks>);
  CHECK(is_communicator<CommunicatorLacks::send>);
  CHECK(is_communicator<CommunicatorLacks::send_recv>);
  CHECK(is_communicator<CommunicatorLacks::split>);
}
