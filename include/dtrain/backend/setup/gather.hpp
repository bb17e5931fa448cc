#pragma once
/// @file
/// gather_blocking: gathers one text of each rank on rank 0, which combines and distributes them.

#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/setup/store_ref.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Collective, blocking. Rank 0 combines one text of each rank; every rank gets the result. No key stays in the store.
/// @param name prefix of the keys, used once
/// @param combine `combine(texts)` runs on rank 0, with the texts in rank order
/// @throws Error (timeout), JobFailed; on rank 0, exceptions of `combine`
template <class Combine>
std::string gather_blocking(const StoreRef& store, const std::string& name, int rank, int ranks, std::string own,
                            Combine combine, Deadline deadline) {
  const auto key_of = [&](int other) { return name + "/" + std::to_string(other); };
  if (rank != 0) {
    store.set_blocking(key_of(rank), own, deadline);
    return store.take_blocking(name + "/all", ranks - 1, deadline);
  }
  std::vector<std::string> texts{std::move(own)};
  for (int other = 1; other < ranks; ++other) {
    texts.push_back(store.take_blocking(key_of(other), 1, deadline));
  }
  const std::string text = combine(texts);
  if (ranks > 1) {
    store.set_blocking(name + "/all", text, deadline);
  }
  return text;
}

}  // namespace DTRAIN_NAMESPACE::backend
