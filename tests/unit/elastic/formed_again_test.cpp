// Two workers as threads, one of which fails at a named point of its attempt, again and again: the other one goes on
// with the same weights, and holds nothing of the attempts that have failed.
//   DTRAIN_TEST_FORMATIONS=1000 unit_elastic --source-file='*formed_again*'

#include <malloc.h>

#include <optional>

#include "support/process_holdings.hpp"
#include "unit/elastic/prelude.hpp"

using support::ElasticModel;

namespace {

/// Where a worker fails.
enum class Point { called, wrapped, before_ready, last_ready, behind_step, in_commit, committed };
constexpr std::array<const char*, 7> names{"called",      "wrapped",   "before_ready", "last_ready",
                                           "behind_step", "in_commit", "committed"};

/// An error whose text is a new one each time: the same text twice before a commit would end the job.
struct Mistake : std::runtime_error {
  explicit Mistake(Point point)
      : std::runtime_error(std::string(names[static_cast<std::size_t>(point)]) + " " + std::to_string(++count)) {}
  static inline std::atomic<int> count{0};
};

/// Gradients are bound, and ready() is called where nothing may be thrown, as from a library of C.
using BoundModel = support::Bound<ElasticModel>;

/// Gradients of 4 MB, bound.
struct LargeModel {
  std::vector<dtrain::Parameter> parameters() {
    return {{"large", dtrain::tensor_view(values), dtrain::tensor_view(gradient, {count})}};
  }
  void bind_gradient(std::size_t, dtrain::TensorView where) {
    gradient = reinterpret_cast<float*>(where.data);
    std::fill_n(gradient, count, 1.0F);
  }
  static constexpr std::int64_t count = 1 << 20;
  std::vector<float> values = std::vector<float>(count);
  std::vector<float> own = std::vector<float>(count);
  float* gradient = own.data();
};

class Worker {
 public:
  Worker(const FormationProcess& launcher, int slot)
      : process_(support::elastic_process(launcher.address().port, slot, 2)),
        worker_(process_),
        job_(worker_, options_) {
    job_.keep(dtrain::parameter_values(model.parameters()));
  }

  /// Trains until `ends` when an attempt begins, or fails at a point of the attempt's second step.
  void train(const std::atomic<bool>& ends, const Point* fails_at = nullptr) {
    const auto check = [&](Point point, bool is_second) {
      if (fails_at != nullptr && *fails_at == point && is_second) throw Mistake(point);
    };
    job_.train([&](Group group) {
      if (ends) return;
      if (keeps_handles) kept_.push_back(group);
      check(Point::called, job_.step() > 0);
      dtrain::DistributedDataParallel ddp{model, group};
      LargeModel inside;  // is gone with the attempt, and the memory of its gradients an attempt later
      dtrain::DistributedDataParallel other{inside, group};
      check(Point::wrapped, job_.step() > 0);
      const dtrain::DistributedSampler sampler{group, ElasticModel::samples};
      const auto shares = sampler.shares(0);
      for (int i = 0; !ends; ++i) {
        const bool is_second = i == 1;
        const dtrain::SampleShare share = shares[job_.step() % shares.size()];
        ddp.backward([&](dtrain::Ready ready) {
          check(Point::before_ready, is_second);
          model.backward(share.samples, share.weight, ready);
          check(Point::last_ready, is_second);
        });
        check(Point::behind_step, is_second);
        job_.commit([&] {
          model.update();
          check(Point::in_commit, is_second);
        });
        check(Point::committed, is_second);
      }
    });
  }

  BoundModel model;
  bool keeps_handles = false;  ///< on groups that are gone, against the guide

 private:
  const dtrain::launch::RankProcess process_;
  ElasticWorker worker_;
  const dtrain::GroupOptions options_{};
  const dtrain::Elastic<Policy> job_;
  std::vector<Group> kept_;
};

/// What this process holds after ten formations, and after all; of the memory the least in ten formations around the
/// tenth, and in the last ten: an attempt that is not over yet has arenas, which the next sample does not count.
std::pair<support::ProcessHoldings, support::ProcessHoldings> form_again(int formations, bool keeps_handles) {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = sizes.max_workers = 2;
  sizes.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  std::atomic<bool> ends{false};
  Worker survivor(launcher, 0);
  survivor.keeps_handles = keeps_handles;
  std::string why;
  std::thread living([&] {
    try {
      survivor.train(ends);
    } catch (const std::exception& error) {
      why = error.what();
    }
  });
  std::vector<support::ProcessHoldings> seen;
  const int first = static_cast<int>(Point::before_ready);
  const int points = static_cast<int>(names.size());
  for (int i = 0; i < formations; ++i) {
    seen.emplace_back();
    // Who fails before a step keeps its host's workers waiting for a second, and longer the next time: once each.
    const auto point = static_cast<Point>(i == 3 || i == 5 ? (i - 3) / 2 : first + i % (points - first));
    CAPTURE(i);
    Worker failing(launcher, 1);
    CHECK_THROWS_AS(failing.train(ends, &point), Mistake);
  }
  seen.emplace_back();
  ends = true;  // while the survivor waits for another worker
  Worker last(launcher, 1);
  last.train(ends);
  living.join();
  CHECK(why == "");
  CHECK(last.model.digest() == survivor.model.digest());
  CHECK(last.model.digest() != ElasticModel().digest());
  const auto with_least_memory = [&](std::size_t at, std::size_t from) {
    support::ProcessHoldings holdings = seen.at(at);
    for (std::size_t i = from; i < from + 10; ++i) {
      holdings.memory_bytes = std::min(holdings.memory_bytes, seen.at(i).memory_bytes);
    }
    return holdings;
  };
  return {with_least_memory(10, 6), with_least_memory(seen.size() - 1, seen.size() - 10)};
}

}  // namespace

TEST_CASE("a worker goes on, whatever the other one was doing when it failed, and holds nothing of it") {
  static_cast<void>(::mallopt(M_MMAP_THRESHOLD, 1 << 17));  // by itself glibc raises it, and keeps what is freed
  const char* const wanted = std::getenv("DTRAIN_TEST_FORMATIONS");
  const auto [early, late] = form_again(wanted == nullptr ? 40 : std::atoi(wanted), false);
  CHECK(late.descriptors <= early.descriptors + 8);  // the last attempt may not be over
  CHECK(late.threads <= early.threads + 4);
  CHECK(late.mappings <= early.mappings + 64);
  CHECK(late.memory_bytes <= early.memory_bytes + 5'000'000);  // an attempt's arenas have 8 MB
  MESSAGE("memory in MB after ten formations and after all: ", static_cast<double>(early.memory_bytes) / 1e6, " ",
          static_cast<double>(late.memory_bytes) / 1e6);
}

TEST_CASE("a handle that is kept on a group that is gone holds no thread") {
  const auto [early, late] = form_again(20, true);
  CHECK(late.threads <= early.threads + 4);
}
