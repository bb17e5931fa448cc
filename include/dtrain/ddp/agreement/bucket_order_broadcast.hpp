#pragma once
/// @file
/// Bucket order broadcast: rank 0 publishes its ready order, by which every rank plans its buckets.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/async/task/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/agreement/model_agreement.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline constexpr std::size_t order_entry_bytes = 4;

inline std::string order_key(const std::string& prefix, std::size_t chunk) {
  return format_text("{}order/{}", {prefix, chunk});
}

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

/// Publishes rank 0's order in the background, so that no rank waits for rank 0's finish(). `prefix` is used once.
template <class Store>
async::Task<void> publish_order(Store store, std::string prefix, std::vector<std::size_t> order) {
  Serializer writer;
  for (const std::size_t parameter : order) {
    auto index = static_cast<std::uint32_t>(parameter);
    writer.number(index);
  }
  const std::string_view bytes = writer.characters();
  for (std::size_t chunk = 0; chunk < detail::chunks_of(bytes.size()); ++chunk) {
    const std::string key = detail::order_key(prefix, chunk);
    const std::string value(bytes.substr(chunk * detail::signature_chunk_bytes, detail::signature_chunk_bytes));
    co_await store.set(key, value);
  }
}

/// Blocking: until rank 0 has published its order of `count` parameters. Each of the other `world_size` - 1 ranks reads
/// it once. @throws the job's first cause; Error (timeout)
template <class Store>
std::vector<std::size_t> read_order_blocking(Store store, const std::string& prefix, std::size_t count, int world_size,
                                             const FailureContext& context, Deadline deadline) {
  std::string bytes;
  try {
    for (std::size_t chunk = 0; chunk < detail::chunks_of(count * detail::order_entry_bytes); ++chunk) {
      bytes += store.take(detail::order_key(prefix, chunk), world_size - 1, deadline).wait();
    }
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // the first cause names its rank
    throw;
  }
  return detail::order_in(bytes, count);
}

/// Sets the callbacks of `rebuild`, so that all ranks of `group` use rank 0's order. The callbacks keep `group`.
template <class Group>
void set_up_order_broadcast(BucketRebuild& rebuild, Group group, const std::string& prefix,
                            const FailureContext& context) {
  rebuild.ranks_on_host = group.local_world_size();
  const auto wait_until_published =
      std::make_shared<std::function<void(Deadline)>>();  // rank 0 waits for its publication with it
  rebuild.publish = [group, prefix, wait_until_published](const std::vector<std::size_t>& order) {
    if (group.rank() != 0 || group.world_size() == 1) return;
    const auto make = [store = group.store(), prefix, order] { return publish_order(store, prefix, order); };
    const auto publication = std::make_shared<decltype(group.spawn(make))>(group.spawn(make));
    *wait_until_published = [publication](Deadline deadline) { publication->wait(deadline); };
  };
  rebuild.agree = [group, prefix, wait_until_published, context](const std::vector<std::size_t>& order) {
    const Deadline deadline = Deadline::after(group.timeout());
    group.start_pending();  // other ranks may wait for this work before they have their order
    if (group.rank() != 0) {
      return read_order_blocking(group.store(), prefix, order.size(), group.world_size(), context, deadline);
    }
    if (*wait_until_published) {
      (*wait_until_published)(deadline);
    }
    return order;
  };
}

}  // namespace DTRAIN_NAMESPACE::ddp
