#include "unit/public_interface/prelude.hpp"

namespace {

/// Flat under another name.
struct Zigzag : dtrain::topology::Flat {
  static constexpr std::string_view name() noexcept { return "Zigzag"; }
};

using One = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Other = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, Zigzag>;

}  // namespace

TEST_CASE("programs with different policies are an error on every rank that names both and what differs") {
  rendezvous_test::StoreProcess store(2);
  const auto errors = rendezvous_test::on_ranks(2, [&](int rank) {
    const dtrain::launch::RankProcess worker =
        support::rank_process_of(rank, 2, store.port(), std::chrono::seconds(30));
    if (rank == 0) {
      dtrain::ProcessGroup<One>::join(worker);
    } else {
      dtrain::ProcessGroup<Other>::join(worker);
    }
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("ranks disagree: rank ") == 0);
    CHECK_CONTAINS(error, " has topology=Zigzag", " has topology=Flat",
                   "start all ranks with the same program and settings");
  }
}

TEST_CASE("timeouts that differ are an error on every rank that names both") {
  rendezvous_test::StoreProcess store(2);
  const auto errors = rendezvous_test::on_ranks(2, [&](int rank) {
    dtrain::ProcessGroup<One>::join(support::rank_process_of(rank, 2, store.port(), std::chrono::seconds(30 + rank)));
  });
  for (const std::string& error : errors)
    CHECK_CONTAINS(error, " has DTRAIN_TIMEOUT_SECONDS=30", " has DTRAIN_TIMEOUT_SECONDS=31");
}

TEST_CASE("groups that accumulate differently are an error on every rank that names both") {
  rendezvous_test::StoreProcess store(2);
  const auto errors = rendezvous_test::on_ranks(2, [&](int rank) {
    const auto accumulate = rank == 0 ? dtrain::Accumulate::element : dtrain::Accumulate::f32;
    dtrain::ProcessGroup<One>::join(support::rank_process_of(rank, 2, store.port(), std::chrono::seconds(30)),
                                    {accumulate});
  });
  for (const std::string& error : errors)
    CHECK_CONTAINS(error, " has GroupOptions::accumulate=element", " has GroupOptions::accumulate=f32");
}
