#pragma once
/// @file
/// Bucket order broadcast: rank 0 publishes its ready order, by which every rank plans its buckets.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Blocking: until rank 0 has published its order of `count` parameters. Each of the other `world_size` - 1 ranks reads
/// it once. @throws the job's first cause; Error (timeout)
std::vector<std::size_t> read_order_blocking(const backend::StoreRef& store, const std::string& prefix,
                                             std::size_t count, int world_size, const FailureContext& context,
                                             Deadline deadline);

/// Sets the callbacks of `rebuild`, so that all ranks of the group use rank 0's order. @param prefix used once
/// @param set_in_background as group::GroupInternals::set_in_background
/// @param start_pending as ProcessGroup::start_pending
void set_up_order_broadcast(BucketRebuild& rebuild, const backend::StoreRef& store,
                            const rendezvous::Membership& members, const std::string& prefix,
                            const FailureContext& context,
                            std::function<group::WaitUntilSet(group::StoreEntries)> set_in_background,
                            std::function<void()> start_pending);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <cstdint>
#include <memory>
#include <string_view>

#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline constexpr std::size_t order_entry_bytes = 4;

/// @throws Error (protocol) for bytes that are not `count` indices.
inline std::vector<std::size_t> order_in(std::string_view bytes, std::size_t count) {
  if (bytes.size() != count * order_entry_bytes) {
    throw_error(Errc::protocol, "rank 0's order of parameters has {} bytes, not {}; do both run the same program?",
                {bytes.size(), count * order_entry_bytes});
  }
  Serializer reader(bytes);
  std::vector<std::size_t> order(count);
  for (std::size_t& parameter : order) {
    std::uint32_t index = 0;
    reader.number(index);
    parameter = index;
  }
  return order;
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::size_t> read_order_blocking(const backend::StoreRef& store, const std::string& prefix,
                                                            std::size_t count, int world_size,
                                                            const FailureContext& context, Deadline deadline) {
  std::string bytes;
  try {
    bytes = rendezvous::join_value_chunks(
        prefix + "order", count * detail::order_entry_bytes,
        [&](const std::string& name) { return store.take_blocking(name, world_size - 1, deadline); });
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // the first cause names its rank
    throw;
  }
  return detail::order_in(bytes, count);
}

DTRAIN_DEFINED void set_up_order_broadcast(BucketRebuild& rebuild, const backend::StoreRef& store,
                                           const rendezvous::Membership& members, const std::string& prefix,
                                           const FailureContext& context,
                                           std::function<group::WaitUntilSet(group::StoreEntries)> set_in_background,
                                           std::function<void()> start_pending) {
  const auto wait_until_published = std::make_shared<group::WaitUntilSet>();  // empty until rank 0 publishes
  if (members.rank == 0 && members.world_size > 1) {
    rebuild.publish = [set_in_background, prefix, wait_until_published](const std::vector<std::size_t>& order) {
      Serializer writer;
      for (const std::size_t parameter : order) {
        auto index = static_cast<std::uint32_t>(parameter);
        writer.number(index);
      }
      *wait_until_published = set_in_background(rendezvous::value_chunks(prefix + "order", writer.characters()));
    };
  }
  rebuild.agree = [store, start_pending, prefix, wait_until_published, context, rank = members.rank,
                   world_size = members.world_size](const std::vector<std::size_t>& order) {
    const Deadline deadline = Deadline::after(context.timeout);
    start_pending();  // other ranks may wait for this work before they have their order
    if (rank != 0) {
      return read_order_blocking(store, prefix, order.size(), world_size, context, deadline);
    }
    if (*wait_until_published) {
      (*wait_until_published)(deadline);
    }
    return order;
  };
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
