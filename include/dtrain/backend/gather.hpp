#pragma once
/// @file
/// What every rank says, made into one text that every rank gets.

#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/exchange.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Collective, blocking: rank 0 makes one text of all ranks' words, which every rank gets. Nothing of it stays in the
/// store. @param name of the keys, used once; `combine(words)` runs on rank 0, with the words in the order of ranks
/// @throws Error (timeout), JobFailed; what `combine` throws, on rank 0
template <class Combine>
std::string gather_blocking(const Exchange& store, const std::string& name, int rank, int ranks, std::string own,
                            Combine combine, Deadline deadline) {
  const auto key_of = [&](int other) { return name + "/" + std::to_string(other); };
  if (rank != 0) {
    store.set_blocking(key_of(rank), own, deadline);
    return store.take_blocking(name + "/all", ranks - 1, deadline);
  }
  std::vector<std::string> words{std::move(own)};
  for (int other = 1; other < ranks; ++other) {
    words.push_back(store.take_blocking(key_of(other), 1, deadline));
  }
  const std::string text = combine(words);
  if (ranks > 1) {
    store.set_blocking(name + "/all", text, deadline);
  }
  return text;
}

}  // namespace DTRAIN_NAMESPACE::backend
