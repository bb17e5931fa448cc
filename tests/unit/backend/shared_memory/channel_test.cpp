// What a rank publishes for its peers in the memory that they share.

#include "dtrain/backend/shared_memory/channel.hpp"

#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::shared_memory::BarrierWait;
using dtrain::backend::shared_memory::Channel;
using dtrain::backend::shared_memory::ControlBlock;
using dtrain::backend::shared_memory::Segment;

}  // namespace

TEST_CASE("a barrier of very long ago is not taken for an arrival at the next one") {
  const auto segment = Segment::create(ControlBlock::bytes_for(2), ControlBlock::bytes_for(2));
  segment->reserve(0, ControlBlock::bytes_for(2));
  auto* const channel = new Channel(support::channel_context(std::make_shared<FakeJob>(2), 0, 2), segment);
  auto& slot = channel->control().slot(0).operation_slots[1];
  const BarrierWait peer{channel->control(), 2, 1, 0, arrival_flag_of(slot)};  // waits for rank 0 at its first barrier
  slot.barrier.store(0U - 0x7FFF'FFFFU);
  CHECK_FALSE(peer.done());
  slot.barrier.store(0U - 0x8000'0000U);  // one barrier more between this slot's last one and the awaited one
  REQUIRE(peer.done());
  Operation operation = Barrier{}.describe();
  operation.sequence = 1;
  bool is_arrived = true;
  channel->run(1, operation, [&](Channel&, const Operation&) noexcept { is_arrived = peer.done(); });
  CHECK_FALSE(is_arrived);
  channel->close(1);
  channel->release();
}
