#pragma once
/// @file
/// Rank 0's word on an order of the parameters.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/async/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/agreement.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/replanning.hpp"
#include "dtrain/net/byte_reader.hpp"
#include "dtrain/net/byte_writer.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline constexpr std::size_t order_entry_bytes = 4;

inline std::string order_key(const std::string& prefix, std::size_t piece) {
  return prefix + "order/" + std::to_string(piece);
}

/// @throws Error (protocol) for bytes that are not `count` indices.
inline std::vector<std::size_t> order_in(std::string_view bytes, std::size_t count) {
  if (bytes.size() != count * order_entry_bytes) {
    throw Error(Errc::protocol, "rank 0's order of parameters has " + std::to_string(bytes.size()) + " bytes, not " +
                                    std::to_string(count * order_entry_bytes) + "; do both run the same program?");
  }
  net::ByteReader reader(bytes);
  std::vector<std::size_t> order(count);
  for (std::size_t& parameter : order) {
    parameter = reader.u32();
  }
  return order;
}

}  // namespace detail

/// What rank 0 says of its order, in the background: nobody is to wait for its finish(). `prefix` is used once.
template <class Store>
async::Task<void> publish_order(Store store, std::string prefix, std::vector<std::size_t> order) {
  net::ByteWriter writer;
  for (const std::size_t parameter : order) {
    writer.u32(static_cast<std::uint32_t>(parameter));
  }
  const std::string_view bytes = writer.characters();
  for (std::size_t piece = 0; piece < detail::pieces_of(bytes.size()); ++piece) {
    const std::string key = detail::order_key(prefix, piece);
    const std::string part(bytes.substr(piece * detail::description_piece_bytes, detail::description_piece_bytes));
    co_await store.set(key, part);
  }
}

/// Blocking: until rank 0 has published its order of `count` parameters, which each of the other ranks of so many reads
/// once. @throws the job's first cause; Error (timeout)
template <class Store>
std::vector<std::size_t> read_order_blocking(Store store, const std::string& prefix, std::size_t count, int world_size,
                                             const FailureContext& context, Deadline deadline) {
  std::string bytes;
  try {
    for (std::size_t piece = 0; piece < detail::pieces_of(count * detail::order_entry_bytes); ++piece) {
      bytes += store.take(detail::order_key(prefix, piece), world_size - 1, deadline).wait();
    }
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // says it as the rank that it came from
    throw;
  }
  return detail::order_in(bytes, count);
}

/// Gives `replanning` what it needs for rank 0's order to be that of all ranks of `group`, which it keeps.
template <class Group>
void agree_on_order(Replanning& replanning, Group group, const std::string& prefix, const FailureContext& context) {
  replanning.ranks_on_host = group.local_world_size();
  const auto said = std::make_shared<std::function<void(Deadline)>>();  // how rank 0 waits for what it has said
  replanning.publish = [group, prefix, said](const std::vector<std::size_t>& order) {
    if (group.rank() != 0 || group.world_size() == 1) return;
    const auto make = [store = group.store(), prefix, order] { return publish_order(store, prefix, order); };
    const auto saying = std::make_shared<decltype(group.spawn(make))>(group.spawn(make));
    *said = [saying](Deadline deadline) { saying->wait(deadline); };
  };
  replanning.agree = [group, prefix, said, context](const std::vector<std::size_t>& order) {
    const Deadline deadline = Deadline::after(group.timeout());
    group.run_enqueued();  // other ranks may wait for it before they have theirs
    if (group.rank() != 0) {
      return read_order_blocking(group.store(), prefix, order.size(), group.world_size(), context, deadline);
    }
    if (*said) {
      (*said)(deadline);
    }
    return order;
  };
}

}  // namespace DTRAIN_NAMESPACE::ddp
