#pragma once
/// @file
/// Setup of a wrapper's bucket order: rank 0 publishes its ready order in the store, by which every rank plans buckets.
/// Driver calls it for its BucketRebuild.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Blocking: until rank 0 has published its order of `count` parameters. Each of the other ranks reads it once.
/// @throws the job's first cause; Error (timeout)
std::vector<std::size_t> read_order_blocking(const group::GroupHandle& group, const std::string& prefix,
                                             std::size_t count, Deadline deadline);

/// Sets the callbacks of `rebuild`, so that all ranks of the group use rank 0's order. @param prefix used once
void set_up_order_broadcast(BucketRebuild& rebuild, const std::shared_ptr<const group::GroupHandle>& group,
                            const std::string& prefix);

#if DTRAIN_DEFINITIONS

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

DTRAIN_DEFINED std::vector<std::size_t> read_order_blocking(const group::GroupHandle& group, const std::string& prefix,
                                                            std::size_t count, Deadline deadline) {
  const backend::StoreRef store = group.store_ref();
  std::string bytes;
  try {
    bytes = rendezvous::join_value_chunks(
        prefix + "order", count * detail::order_entry_bytes,
        [&](const std::string& name) { return store.take_blocking(name, group.members().world_size - 1, deadline); });
  } catch (const Error&) {
    group.failure()->throw_if_failed(group.members().rank_in_job());  // the first cause names its rank
    throw;
  }
  return detail::order_in(bytes, count);
}

DTRAIN_DEFINED void set_up_order_broadcast(BucketRebuild& rebuild,
                                           const std::shared_ptr<const group::GroupHandle>& group,
                                           const std::string& prefix) {
  const auto wait_until_published = std::make_shared<group::WaitUntilSet>();  // empty until rank 0 publishes
  if (group->members().rank == 0 && group->members().world_size > 1) {
    rebuild.publish_order = [group, prefix, wait_until_published](const std::vector<std::size_t>& order) {
      Serializer writer;
      for (const std::size_t parameter : order) {
        auto index = static_cast<std::uint32_t>(parameter);
        writer.number(index);
      }
      *wait_until_published = group->set_in_background(rendezvous::value_chunks(prefix + "order", writer.characters()));
    };
  }
  rebuild.agreed_order = [group, prefix, wait_until_published](const std::vector<std::size_t>& order) {
    const Deadline deadline = Deadline::after(group->timeout());
    group->start_pending();  // other ranks may wait for this work before they have their order
    if (group->members().rank != 0) return read_order_blocking(*group, prefix, order.size(), deadline);
    if (*wait_until_published) (*wait_until_published)(deadline);
    return order;
  };
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
