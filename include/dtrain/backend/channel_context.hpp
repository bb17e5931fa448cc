#pragma once
/// @file
/// What a group tells a backend about the channel to open.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/backend/exchange.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/membership.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// One channel of one group. Every rank opens the same channels in the same order, so `name` is the same on all.
struct ChannelContext {
  rendezvous::Membership members;         ///< who and where this rank is, among whom
  std::string name;                       ///< unique in the job, e.g. "group/ddp-1"; a prefix for store keys
  Exchange store;                         ///< for exchanging what opening needs; takes a rendezvous::Store
  std::shared_ptr<FailureLatch> failure;  ///< aborts the channel; takes its reports
  std::chrono::nanoseconds timeout;       ///< of one collective, from the moment it begins to run
};

}  // namespace DTRAIN_NAMESPACE::backend
