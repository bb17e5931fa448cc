#pragma once
/// @file
/// Rank 0's word on an order of the parameters.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/agreement.hpp"
#include "dtrain/ddp/description_bytes.hpp"
#include "dtrain/ddp/failure_context.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline constexpr std::size_t order_entry_bytes = 4;

/// @throws Error (protocol) for bytes that are not `count` indices.
inline std::vector<std::size_t> order_in(std::string_view bytes, std::size_t count) {
  DescriptionReader reader(bytes);
  std::vector<std::size_t> order;
  for (std::uint64_t parameter = 0; reader.number(parameter, order_entry_bytes) && order.size() < count;) {
    order.push_back(static_cast<std::size_t>(parameter));
  }
  if (order.size() != count || !reader.at_end()) {
    throw Error(Errc::protocol, "rank 0's order of parameters has " + std::to_string(bytes.size()) + " bytes, not " +
                                    std::to_string(count * order_entry_bytes) + "; do both run the same program?");
  }
  return order;
}

}  // namespace detail

/// Collective, blocking. @param rank in the group whose ranks agree; `prefix` is used once
/// @returns rank 0's `order`, whose length is the same on every rank. @throws the job's first cause; Error (timeout)
template <class Store>
std::vector<std::size_t> agree_on_order_blocking(Store store, const std::string& prefix,
                                                 const std::vector<std::size_t>& order, int rank,
                                                 const FailureContext& context, Deadline deadline) {
  const std::size_t pieces = detail::pieces_of(order.size() * detail::order_entry_bytes);
  const auto key = [&](std::size_t piece) { return prefix + "order/" + std::to_string(piece); };
  std::string bytes;
  try {
    if (rank == 0) {
      for (const std::size_t parameter : order) {
        detail::append(bytes, parameter, detail::order_entry_bytes);
      }
      for (std::size_t piece = 0; piece < pieces; ++piece) {
        store.set_blocking(key(piece),
                           bytes.substr(piece * detail::description_piece_bytes, detail::description_piece_bytes),
                           deadline);
      }
      return order;
    }
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      bytes += store.get_blocking(key(piece), deadline);
    }
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // says it as the rank that it came from
    throw;
  }
  return detail::order_in(bytes, order.size());
}

}  // namespace DTRAIN_NAMESPACE::ddp
