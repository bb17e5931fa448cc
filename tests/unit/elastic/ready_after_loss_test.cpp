// A rank is lost while another one's backward pass runs, in a thread of the model's or in a function that may not
// throw: ready() drops the gradients that are left, and the end of the step throws.

#include <span>

#include "unit/elastic/prelude.hpp"

using dtrain_test::CuttingProxy;
using support::ElasticModel;

namespace {

constexpr float computed = 42;

using BoundModel = support::Bound<ElasticModel>;

/// Whether the group's job has failed, as the program learns it.
bool has_failed(const Group& group) noexcept {
  try {
    group.check();
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

/// How the survivor's backward pass calls ready().
enum class Caller { thread, may_not_throw };

/// Two workers, one of which is lost behind the other one's first ready gradient.
template <class Model>
void lose_a_rank(Caller caller) {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.max_workers = 2;
  sizes.reconnect_timeout = std::chrono::milliseconds(1);  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  CuttingProxy proxy(launcher.address().port);
  const dtrain::GroupOptions options;
  support::Gate is_ready;
  support::Gate is_over;
  std::thread victim([&] {
    const auto process = support::elastic_process(proxy.port(), 1, 2);
    dtrain::elastic::ElasticWorker worker(process);
    const dtrain::Elastic<Policy> job(worker, options);
    Model model;
    job.keep(dtrain::parameter_values(model.parameters()));
    try {
      job.train([&](Group group) {
        dtrain::DistributedDataParallel ddp{model, group};
        const dtrain::Step step = ddp.begin();
        is_ready.pass();
        proxy.refuse(true);
        proxy.cut(CuttingProxy::How::end);
        is_over.pass();
        proxy.refuse(false);
        group.barrier();
      });
    } catch (const dtrain::elastic::WorkerEnded&) {
    } catch (const std::exception&) {
    }
  });

  const auto process = support::elastic_process(launcher.address().port, 0, 2);
  dtrain::elastic::ElasticWorker worker(process);
  const dtrain::Elastic<Policy> job(worker, options);
  Model model;
  job.keep(dtrain::parameter_values(model.parameters()));
  bool has_called_all = false;
  bool has_thrown = false;
  bool is_as_computed = true;
  int world_size = 0;
  job.train([&](Group group) {
    world_size = group.world_size();
    if (world_size == 1) return;
    dtrain::DistributedDataParallel ddp{model, group};
    const auto pass = [&](dtrain::Ready ready) noexcept {
      for (std::size_t i = ElasticModel::layers; i-- > 0;) {
        std::fill_n(model.gradients[i], ElasticModel::width, computed);
        ready(i);
        if (i + 1 == ElasticModel::layers) {
          is_ready.open();
          CHECK(support::holds_soon([&] { return has_failed(group); }));
        }
      }
      has_called_all = true;
    };
    try {
      ddp.backward([&](dtrain::Ready ready) {
        if (caller == Caller::thread) {
          std::thread([&] { pass(ready); }).join();
        } else {
          pass(ready);
        }
      });
    } catch (const dtrain::JobFailed&) {
      has_thrown = true;
      for (std::size_t i = 0; i + 1 < ElasticModel::layers; ++i) {
        for (const float each : std::span(model.gradients[i], ElasticModel::width)) {
          is_as_computed = is_as_computed && each == computed;
        }
      }
      throw;
    }
  });
  is_over.open();
  victim.join();
  CHECK(has_called_all);
  CHECK(has_thrown);
  CHECK(is_as_computed);
  CHECK(world_size == 1);
  CHECK(job.step() == 0);
  CHECK(model.digest() == Model().digest());
}

}  // namespace

TEST_CASE("ready() of another thread drops gradients after the loss of a rank, and backward() throws") {
  lose_a_rank<ElasticModel>(Caller::thread);
  lose_a_rank<BoundModel>(Caller::thread);
}

TEST_CASE("ready() of a function that may not throw drops gradients after a loss, and backward() throws") {
  lose_a_rank<ElasticModel>(Caller::may_not_throw);
  lose_a_rank<BoundModel>(Caller::may_not_throw);
}
