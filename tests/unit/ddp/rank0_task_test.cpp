#include "dtrain/ddp/rank0_task.hpp"

#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "unit/ddp/prelude.hpp"
#include "unit/rendezvous/store_job.hpp"

namespace {

using namespace rendezvous_test;

/// What run_on_rank0_blocking needs of a group.
struct StoreGroup {
  int rank() const { return control_plane.membership().rank; }
  int world_size() const { return control_plane.membership().world_size; }
  const Membership& members() const { return control_plane.membership(); }
  std::chrono::nanoseconds timeout() const { return longest; }
  Store store() const { return control_plane.store().with_timeout(timeout()); }
  int next_number(const std::string&) const { return ++*number; }
  const StoreGroup& internals() const { return *this; }
  void start_pending() const {}
  const StoreGroup* rank_context() const { return this; }
  void require_may_block() const {}

  ControlPlane& control_plane;
  std::chrono::nanoseconds longest = 20s;
  std::shared_ptr<int> number = std::make_shared<int>(0);
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
        const bool outcome = dtrain::ddp::detail::run_on_rank0_blocking(group, "writing the file /slow/disk", [&] {
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
    dtrain::ddp::detail::run_on_rank0_blocking(group, "writing the file x", [] { return true; });
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
        dtrain::ddp::detail::run_on_rank0_blocking(
            group, "writing the file x", [&]() -> bool { throw dtrain::Error(code, "7 it cannot be written"); });
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
    const dtrain::Error error = support::error_of(
        [&] { dtrain::ddp::detail::run_on_rank0_blocking(group, doing, [&] { return ++done > 0; }); });
    CHECK(error.code() == make_error_code(dtrain::Errc::disagreement));
    CHECK(error.rank() == 2);
    CHECK(std::string(error.what()) ==
          "rank 0 is writing the file x, but rank 2 is writing the file other; give the same name on every rank, and "
          "wait for pending checkpoints in the same order");
    CHECK(dtrain::ddp::detail::run_on_rank0_blocking(group, "writing the file x", [&] { return ++done > 0; }));
    control_plane.store().barrier("done", soon()).wait();
  });
  CHECK(done == 1);
}
