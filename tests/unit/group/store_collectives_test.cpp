#include "dtrain/group/store_collectives.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <map>

#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "support/expect_error.hpp"
#include "support/fake_group_handle.hpp"
#include "support/on_threads.hpp"
#include "support/temporary_directory.hpp"
#include "unit/rendezvous/store_job.hpp"

using dtrain::Errc;
using namespace std::chrono_literals;

namespace {

using namespace rendezvous_test;

/// A rank's collectives over a real store.
class StoreGroup final : public dtrain::group::StoreCollectives {
 public:
  explicit StoreGroup(ControlPlane& control_plane, std::chrono::nanoseconds longest = 20s)
      : control_plane_(control_plane), longest_(longest) {}

  int rank() const { return members().rank; }
  const Membership& members() const noexcept override { return control_plane_.membership(); }
  std::chrono::nanoseconds timeout() const noexcept override { return longest_; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept override { return control_plane_.failure(); }
  dtrain::backend::StoreRef store_ref() const override { return control_plane_.store().with_timeout(longest_); }
  int next_number(const std::string& purpose) const override { return ++numbers_[purpose]; }
  void require_may_block() const override {}

 private:
  ControlPlane& control_plane_;
  const std::chrono::nanoseconds longest_;
  mutable std::map<std::string, int> numbers_;
};

/// What is written to stderr while it lives.
class StandardError {
 public:
  explicit StandardError(std::string path) : path_(std::move(path)), before_(::dup(2)) {
    const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(before_ >= 0);
    REQUIRE(file >= 0);
    REQUIRE(::dup2(file, 2) == 2);
    ::close(file);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;
  ~StandardError() {
    ::dup2(before_, 2);
    ::close(before_);
  }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_;
  int before_;
};

}  // namespace

TEST_CASE("rank 0 may write for longer than the timeout: the others wait, and say for what") {
  const support::TemporaryDirectory folder;
  std::string said;
  {
    const StandardError error(folder.path + "/stderr");
    run_job(3, [&](ControlPlane& control_plane) {
      const StoreGroup group{control_plane, 2s};
      for (const bool result : {true, false}) {
        const bool outcome = group.on_rank_0("test", "writing the file /slow/disk", [&] {
          const Deadline deadline = soon();
          while (error.text().find("rank 2: after") == std::string::npos && !deadline.passed())
            std::this_thread::sleep_for(10ms);
          return result;
        });
        CHECK(outcome == result);
      }
      control_plane.store().barrier("done", soon()).wait();
    });
    said = error.text();
  }
  const std::string rest =
      " s rank 0 is still writing the file /slow/disk; this rank waits until that rank has finished or is lost\n";
  CHECK_CONTAINS(said, "dtrain: rank 2: after ", rest);
}

TEST_CASE("who waits for rank 0's work hears that rank 0 was lost") {
  StoreProcess store(2);
  std::atomic<bool> works{false};
  const auto errors = on_ranks(2, [&](int rank) {
    std::optional<ControlPlane> control_plane(std::in_place, rank_options(rank, 2, store.port()));
    if (rank == 0) {
      const Deadline deadline = soon();
      while (!works && !deadline.passed())
        std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(500ms);
      return control_plane.reset();
    }
    works = true;
    const StoreGroup group{*control_plane};
    group.on_rank_0("test", "writing the file x", [] { return true; });
  });
  CHECK(errors[0] == "");
  CHECK(errors[1].starts_with("rank 0 on host "));
  CHECK_CONTAINS(errors[1], " was lost: ");
}

TEST_CASE("an Error of rank 0's work has the same code, sentence and rank on all ranks") {
  run_job(2, [](ControlPlane& control_plane) {
    const StoreGroup group{control_plane};
    for (const std::error_code code :
         {std::error_code(ENOSPC, std::generic_category()), make_error_code(dtrain::Errc::protocol)}) {
      const dtrain::Error error = support::error_of([&] {
        group.on_rank_0("test", "writing the file x",
                        [&]() -> bool { throw dtrain::Error(code, "7 it cannot be written"); });
      });
      CHECK(error.code() == code);
      CHECK(error.rank() == 0);
      CHECK(error.what() ==
            "7 it cannot be written (on rank 0 on host " + host_identity().name + ", which does it for all ranks)");
    }
    control_plane.store().barrier("done", soon()).wait();
  });
}

TEST_CASE("ranks that do different things have an Error that names both, and rank 0 does nothing") {
  std::atomic<int> done{0};
  run_job(3, [&](ControlPlane& control_plane) {
    const StoreGroup group{control_plane};
    const std::string doing = "writing the file " + std::string(group.rank() == 2 ? "other" : "x");
    const dtrain::Error error = support::error_of([&] { group.on_rank_0("test", doing, [&] { return ++done > 0; }); });
    CHECK(error.code() == make_error_code(dtrain::Errc::disagreement));
    CHECK(error.rank() == 2);
    CHECK(std::string(error.what()) ==
          "rank 0 is writing the file x, but rank 2 is writing the file other; give the same name on every rank, and "
          "wait for pending checkpoints in the same order");
    CHECK(group.on_rank_0("test", "writing the file x", [&] { return ++done > 0; }));
    control_plane.store().barrier("done", soon()).wait();
  });
  CHECK(done == 1);
}

TEST_CASE("rank 0 combines the texts of all ranks in rank order, again and again, and no key stays") {
  const auto job = std::make_shared<support::FakeJob>(3);
  support::on_threads(3, [&](std::size_t rank) {
    const auto group = support::FakeGroupHandle::of(job, static_cast<int>(rank), 3);
    for (const std::string text : {"a", "b"}) {
      const std::string all = group->gather(
          "test", "joining texts", [&] { return text + std::to_string(rank); },
          [](const std::vector<std::string>& texts) { return texts[0] + texts[1] + texts[2]; });
      CHECK(all == text + "0" + text + "1" + text + "2");
    }
  });
  for (const char* const key : {"1/1", "1/2", "1/all", "2/1", "2/2", "2/all"})
    CHECK(!support::FakeStore(job, 0).contains(std::string("dtrain/test/") + key));
}

TEST_CASE("a wait that ends in vain after the job has failed throws the job's first cause, and else its own error") {
  const auto wait_alone = [](support::FakeGroupHandle& group) {
    return support::error_of([&] {
      group.gather(
          "test", "joining texts", [] { return std::string(); }, [](const auto&) { return std::string(); },
          {Deadline::after(10ms)});
    });
  };
  const auto job = std::make_shared<support::FakeJob>(2);
  const auto group = support::FakeGroupHandle::of(job, 1, 2);
  CHECK(wait_alone(*group).code() == make_error_code(Errc::timeout));
  job->latch(1)->set({CauseKind::exception, 0, "host-0", "its disk is full"});
  const dtrain::Error error = wait_alone(*group);
  CHECK(error.code() == make_error_code(Errc::job_failed));
  CHECK(support::contains(error.what(), "its disk is full"));
}

TEST_CASE("an Error that a rank has sent is every rank's, also where the job has failed meanwhile") {
  const auto job = std::make_shared<support::FakeJob>(2);
  support::on_threads(2, [&](std::size_t rank) {
    const auto group = support::FakeGroupHandle::of(job, static_cast<int>(rank), 2);
    const dtrain::Error error = support::error_of([&] {
      group->gather(
          "test", "joining texts", [] { return std::string(); },
          [&](const auto&) -> std::string {
            job->latch(0)->set({CauseKind::exception, 1, "host-1", "another failure"});
            dtrain::throw_error(Errc::disagreement, "the texts differ", {});
          });
    });
    CHECK(error.code() == make_error_code(Errc::disagreement));
    CHECK(std::string(error.what()) == "the texts differ");
  });
}
