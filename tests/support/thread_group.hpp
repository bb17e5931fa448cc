#pragma once
/// @file
/// A job whose ranks are threads of the test: a real store, real sessions, one process group for each thread.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/process_group.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"
#include "unit/rendezvous/store_fixture.hpp"

namespace support {

/// How a rank's body ended.
struct RankEnd {
  std::string text;         ///< of the exception; empty where there was none
  bool job_failed = false;  ///< it fell because of another rank
  friend bool operator==(const RankEnd&, const RankEnd&) = default;
};

/// What each rank does with its group; no argument from which a call deduces Policy.
template <class Policy>
using GroupBody = std::type_identity_t<std::function<void(const dtrain::ProcessGroup<Policy>&)>>;

/// What a launcher tells `rank`, where the store listens on this machine.
inline dtrain::launch::RankProcess rank_process_of(int rank, int world_size, std::uint16_t port,
                                                   std::chrono::seconds timeout = std::chrono::seconds(is_sanitized
                                                                                                           ? 60
                                                                                                           : 20)) {
  dtrain::launch::RankProcess process;
  process.identity.rank = rank;
  process.identity.world_size = world_size;
  process.identity.master_addr = "127.0.0.1";
  process.identity.master_port = port;
  process.timeout = timeout;
  return process;
}

/// Runs `body(group)` on every rank of the store's job and, as run() does, tells the job what leaves it. Ranks with the
/// same `hosts[rank]` share a node; all do where it is empty. They join with `options[rank]`.
template <class Policy>
std::vector<RankEnd> run_groups_at(const rendezvous_test::StoreProcess& store, int ranks, const GroupBody<Policy>& body,
                                   std::chrono::seconds patience = patience_with_ranks,
                                   const std::vector<std::string>& hosts = {},
                                   const std::vector<dtrain::GroupOptions>& options = {}) {
  std::vector<RankEnd> ends(static_cast<std::size_t>(ranks));
  run_thread_ranks(
      ranks,
      [&](RankThread& self) {
        dtrain::launch::RankProcess worker = rank_process_of(self.rank(), ranks, store.port());
        if (hosts.empty()) {
          worker.identity.local_rank = self.rank();
          worker.identity.local_world_size = ranks;
        } else {
          worker.host_id = hosts[static_cast<std::size_t>(self.rank())];
        }
        self.doing("joining");
        RankEnd& end = ends[static_cast<std::size_t>(self.rank())];
        std::optional<dtrain::ProcessGroup<Policy>> joined;
        try {
          const dtrain::GroupOptions own =
              options.empty() ? dtrain::GroupOptions() : options[static_cast<std::size_t>(self.rank())];
          joined.emplace(dtrain::ProcessGroup<Policy>::join(worker, own));
        } catch (const dtrain::JobFailed& failed) {  // another rank was faster
          end = {failed.what(), true};
          return;
        }
        const dtrain::ProcessGroup<Policy>& group = *joined;
        self.doing("running the body");
        try {
          body(group);
          self.doing("leaving");
          group.leave();
        } catch (const dtrain::JobFailed& failed) {
          end = {failed.what(), true};
        } catch (const dtrain::Error& error) {
          end = {error.what(), false};
          dtrain::group::GroupAccess::of(group).rank_context()->report_exception(error.what(), error.rank());
        } catch (const std::exception& error) {
          end = {error.what(), false};
          dtrain::group::GroupAccess::of(group).rank_context()->report_exception(error.what());
        }
      },
      patience);
  return ends;
}

/// The same with a store of its own.
template <class Policy>
std::vector<RankEnd> run_groups(int ranks, const GroupBody<Policy>& body,
                                std::chrono::seconds patience = patience_with_ranks,
                                const std::vector<std::string>& hosts = {},
                                const std::vector<dtrain::GroupOptions>& options = {}) {
  const rendezvous_test::StoreProcess store(ranks);
  return run_groups_at<Policy>(store, ranks, body, patience, hosts, options);
}

inline void expect_well(const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends)
    CHECK(end.text == "");
}

/// run_groups() where every rank's body is to return.
template <class Policy>
void run_well(int ranks, const GroupBody<Policy>& body, std::chrono::seconds patience = patience_with_ranks,
              const std::vector<std::string>& hosts = {}, const std::vector<dtrain::GroupOptions>& options = {}) {
  expect_well(run_groups<Policy>(ranks, body, patience, hosts, options));
}

}  // namespace support
