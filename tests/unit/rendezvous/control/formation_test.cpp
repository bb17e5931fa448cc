#include "unit/rendezvous/prelude.hpp"

TEST_CASE("a rank alone forms its job, also where its port is taken") {
  StoreProcess other(1);
  ControlPlaneOptions options = rank_options(0, 1, other.port());
  options.hosts_store = true;
  ControlPlane alone(options);
  CHECK(alone.membership().world_size == 1);
  CHECK(alone.membership().job.size() == 32);
  CHECK(alone.membership().other_host_rank == -1);
  CHECK(alone.leave_blocking(soon()));
}

TEST_CASE("2, 8 and 64 ranks form a job and leave it, and no descriptor stays open") {
  for (const int world_size : {2, 8, 64}) {
    CAPTURE(world_size);
    const std::size_t before = open_descriptors();
    {
      StoreProcess store(world_size);
      std::vector<Membership> members(static_cast<std::size_t>(world_size));
      const auto errors = on_ranks(world_size, [&](int rank) {
        ControlPlane control_plane(rank_options(rank, world_size, store.port()));
        members[static_cast<std::size_t>(rank)] = control_plane.membership();
        control_plane.store().barrier("all", soon()).wait();
        if (!control_plane.leave_blocking(soon())) {
          throw std::runtime_error("the store did not acknowledge");
        }
      });
      std::set<std::string> jobs;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto& member = members[static_cast<std::size_t>(rank)];
        CHECK(errors[static_cast<std::size_t>(rank)] == "");
        CHECK(member.rank == rank);
        CHECK(member.local_rank == rank);
        CHECK(member.local_world_size == world_size);
        CHECK(member.node_count == 1);
        CHECK_FALSE(member.host.empty());
        jobs.insert(member.job);
      }
      CHECK(jobs.size() == 1);
      CHECK(store.all_left(soon()));
    }
    CHECK(open_descriptors() == before);
  }
}

TEST_CASE("host identities make nodes") {
  StoreProcess store(4);
  std::vector<Membership> members(4);
  run_ranks(4, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 4, store.port());
    options.host_id = rank % 2 == 0 ? "even" : "odd";
    ControlPlane control_plane(options);
    members[static_cast<std::size_t>(rank)] = control_plane.membership();
    control_plane.leave_blocking(soon());
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto& member = members[static_cast<std::size_t>(rank)];
    CHECK(member.node_count == 2);
    CHECK(member.node_rank == rank % 2);
    CHECK(member.local_rank == rank / 2);
    CHECK(member.local_world_size == 2);
    CHECK(member.other_host_rank == (rank % 2 == 0 ? 1 : 0));
  }
}

TEST_CASE("a wrong statement of a launcher is an error on every rank") {
  StoreProcess store(3);
  const auto errors = on_ranks(3, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 3, store.port());
    if (rank == 1) {
      options.identity.local_rank = 2;
    }
    const ControlPlane control_plane(options);
  });
  for (const std::string& error : errors) {
    CHECK(error.find("ranks disagree: rank 1 on host ") == 0);
    CHECK_CONTAINS(error, "was given local_rank 2 by its launcher, but it is 1: 3 ranks share its host");
  }
}

TEST_CASE("world sizes that differ are an error on every rank that names both") {
  StoreProcess store(3);
  const auto errors = on_ranks(
      3, [&](int rank) { const ControlPlane control_plane(rank_options(rank, rank == 2 ? 4 : 3, store.port())); });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("ranks disagree: rank 2 on host ") == 0);
    CHECK_CONTAINS(error, "says that the world has 4 ranks, the launcher on host l that it has 3");
  }
}

TEST_CASE("a rank that is taken or out of range is refused alone, and the others form") {
  std::counting_semaphore<> joined{0};
  StoreOptions server = StoreProcess::with_world_size(2);
  server.job.on_joined = [&](int rank, const std::string&) {
    if (rank == 0) {
      joined.release();
    }
  };
  StoreProcess store(std::move(server));
  std::jthread first([&] {
    ControlPlane control_plane(rank_options(0, 2, store.port()));
    control_plane.leave_blocking(soon());
  });
  REQUIRE(joined.try_acquire_for(std::chrono::seconds(30)));
  for (const int rank : {0, 2}) {
    CHECK_ERROR(ControlPlane(rank_options(rank, 2, store.port())), dtrain::Errc::refused,
                "as rank " + std::to_string(rank) + " was refused: rank " + std::to_string(rank),
                rank == 0 ? "is taken: rank 0 on host " : "is out of range in a world of 2 ranks");
  }
  ControlPlane second(rank_options(1, 2, store.port()));
  CHECK(second.leave_blocking(soon()));
}

TEST_CASE("the shortest join timeout fails the job on every rank and names the missing ranks") {
  std::counting_semaphore<> joined{0};
  StoreOptions server = StoreProcess::with_world_size(4);
  server.job.on_joined = [&](int rank, const std::string&) {
    if (rank == 2) {
      joined.release();
    }
  };
  StoreProcess store(std::move(server));
  const auto errors = on_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank == 0 ? 0 : 2, 4, store.port());
    if (rank == 0) {
      options.timeout = std::chrono::seconds(4);
      if (!joined.try_acquire_for(std::chrono::seconds(30))) throw std::runtime_error("rank 2 did not join");
    }
    const ControlPlane control_plane(options);
  });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("the job timed out: within ") == 0);
    CHECK_CONTAINS(error, "only ranks 0 and 2 of 4 joined, ranks 1 and 3 did not");
  }
}

TEST_CASE("where ranks are missing, rank 0 names the address at which it listens, and the one that they were given") {
  const std::uint16_t port = free_port();
  ControlPlaneOptions options = rank_options(0, 2, port);
  options.hosts_store = true;
  options.timeout = std::chrono::seconds(2);
  const std::string number = std::to_string(port);
  CHECK_THROWS_WITH(ControlPlane{options},
                    doctest::Contains(("know the address of the store: rank 0 listens at 127.0.0.1:" + number +
                                       ", and MASTER_ADDR is 127.0.0.1")
                                          .c_str()));
  options.identity.master_addr = "192.0.2.7";  // reserved for documentation
  options.secret = dtrain::rendezvous::Secret::drawn();
  CHECK_THROWS_WITH(ControlPlane{options},
                    doctest::Contains(("rank 0 listens at port " + number + " of every address, and MASTER_ADDR is " +
                                       "192.0.2.7, which is no address of its host")
                                          .c_str()));
}

TEST_CASE("rank 0 hosts the store and leaves last") {
  const std::uint16_t port = free_port();
  run_ranks(3, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 3, port);
    options.hosts_store = rank == 0;
    ControlPlane control_plane(options);
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      control_plane.store().set("late", "value", soon()).wait();
    }
    if (!control_plane.leave_blocking(soon())) {
      throw std::runtime_error("it did not leave in order");
    }
  });
}

TEST_CASE("a port that is taken is an error that names it") {
  StoreProcess other(1);
  ControlPlaneOptions options = rank_options(0, 2, other.port());
  options.hosts_store = true;
  CHECK(error_of_joining(options).starts_with("port " + std::to_string(other.port()) +
                                              " on 127.0.0.1 is in use by another program, or by another rank 0"));
}

TEST_CASE("rank 0 of a job that is too large for a store says so, and ends") {
  const int ranks = dtrain::rendezvous::max_world_size + 1;
  ControlPlaneOptions options = rank_options(0, ranks, free_port());
  options.hosts_store = true;
  CHECK(error_of_joining(options).starts_with("opening the store of a job of " + std::to_string(ranks) + " ranks"));
}

TEST_CASE("nobody listens at several ports: the error says what each attempt met, and for how long") {
  ControlPlaneOptions options = rank_options(1, 2, free_port());
  options.master_ports = 2;
  options.timeout = std::chrono::seconds(2);
  const std::string text = error_of_joining(options);
  CHECK_CONTAINS(text, "connecting to 127.0.0.1:");
  CHECK(!contains(text, "tried for 0.0 s"));
}

TEST_CASE("nobody listens: the error names the host and the port") {
  const std::uint16_t port = free_port();
  ControlPlaneOptions options = rank_options(1, 2, port);
  options.timeout = std::chrono::seconds(2);
  CHECK_ERROR(ControlPlane(options), std::errc::connection_refused, "127.0.0.1 port " + std::to_string(port));
}
