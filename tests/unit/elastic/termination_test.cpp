#include "dtrain/elastic/termination.hpp"

#include <unistd.h>

#include <csignal>
#include <optional>

#include "dtrain/elastic/elastic_worker.hpp"
#include "unit/elastic/prelude.hpp"

namespace {

/// The system's handling of SIGTERM in place of doctest's, for as long as this lives.
class DefaultTermination {
 public:
  DefaultTermination() {
    ::sigaction(SIGTERM, nullptr, &before_);
    std::signal(SIGTERM, SIG_DFL);
  }
  ~DefaultTermination() { ::sigaction(SIGTERM, &before_, nullptr); }

  static bool is_default() {
    struct sigaction now {};
    ::sigaction(SIGTERM, nullptr, &now);
    return now.sa_handler == SIG_DFL;
  }

 private:
  struct sigaction before_ {};
};

/// A worker that is assigned to an attempt, and joins it only when it may.
class LateBody final : public dtrain::elastic::AttemptBody {
 public:
  dtrain::group::RankContext& join(const dtrain::rendezvous::ControlPlaneOptions& options) override {
    world_sizes.push_back(options.identity.world_size);
    may_join.pass();
    group_.emplace(Group::join(options));
    return *dtrain::group::GroupAccess::of(*group_).rank_context();
  }
  void transfer(dtrain::elastic::KeptState&, const dtrain::rendezvous::Assignment&,
                const dtrain::rendezvous::TrainingProgress&) override {}
  int call() override { return 0; }
  void drop() noexcept override { group_.reset(); }

  support::Gate may_join;
  std::vector<int> world_sizes;  ///< of the attempts

 private:
  std::optional<Group> group_;
};

}  // namespace

TEST_CASE("SIGTERM makes a worker leave at once that joins an attempt, and the others do not wait for it") {
  const DefaultTermination handling;
  dtrain::rendezvous::FormationOptions sizes;
  sizes.max_workers = 2;
  sizes.first_formation = 60s;
  FormationProcess launcher(sizes);
  const dtrain::GroupOptions options;
  int exit_code = 0;
  std::thread leaving([&] {
    const auto process = support::elastic_process(launcher.address().port, 0, 2);
    ElasticWorker worker(process);
    try {
      dtrain::Elastic<Policy>(worker, options).train([](Group) {});
    } catch (const dtrain::WorkerEnded& ended) {
      exit_code = ended.exit_code;
    }
  });
  REQUIRE(support::holds_soon([] { return !DefaultTermination::is_default(); }));
  LateBody body;
  std::thread staying([&] {
    const auto process = support::elastic_process(launcher.address().port, 1, 2);
    ElasticWorker worker(process);
    const auto required = dtrain::group::required_settings<Policy>(options);
    CHECK(worker.run(body, dtrain::group::settings_text(process, required)) == 0);
  });
  REQUIRE(body.may_join.is_reached_soon());
  std::this_thread::sleep_for(100ms);  // the first worker is joining, or about to
  REQUIRE(::kill(::getpid(), SIGTERM) == 0);
  leaving.join();  // else SIGTERM would end this process after 5 s
  CHECK(exit_code == 143);
  body.may_join.open();
  staying.join();
  CHECK(body.world_sizes == std::vector<int>{2, 1});
}

TEST_CASE("one object at a time handles SIGTERM, and another one can once that is gone") {
  const DefaultTermination handling;
  dtrain::async::LoopThread thread;
  using dtrain::elastic::Termination;
  for (int repeat = 0; repeat < 2; ++repeat) {
    CAPTURE(repeat);
    std::optional<Termination<>> first(std::in_place, *thread.handle(), [] {});
    CHECK_FALSE(DefaultTermination::is_default());
    const Termination<> second(*thread.handle(), [] {});
    first.reset();
    CHECK(DefaultTermination::is_default());
  }
}
