// What an elastic job's steps cost the store: nothing.

#include <memory>

#include "unit/elastic/prelude.hpp"

using dtrain::rendezvous::MessageKind;
using dtrain_test::CuttingProxy;

namespace {

/// What a worker has sent to the store.
struct Sent {
  explicit Sent(const CuttingProxy& proxy)
      : requests(proxy.frames(MessageKind::request)),
        cancels(proxy.frames(MessageKind::cancel)),
        commits(proxy.frames(MessageKind::committed)),
        announcements(proxy.frames(MessageKind::announce)) {}
  int requests, cancels, commits, announcements;
};

}  // namespace

TEST_CASE("1,000 steps of an elastic job make no request to the store, and one message for each worker") {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = sizes.max_workers = 2;
  FormationProcess launcher(sizes);
  std::array<std::unique_ptr<CuttingProxy>, 2> proxies;
  std::array<std::string, 2> texts;
  const auto work = [&](int slot) {
    const auto place = static_cast<std::size_t>(slot);
    CuttingProxy& proxy = *proxies[place];
    const auto process = support::elastic_process(proxy.port(), slot, 2);
    dtrain::elastic::ElasticWorker worker(process);
    const dtrain::GroupOptions options;
    const dtrain::Elastic<Policy> job(worker, options);
    support::ElasticModel model;
    job.keep(dtrain::parameter_values(model.parameters()));
    try {
      job.train([&](Group group) {
        dtrain::DistributedDataParallel ddp{model, group};
        const dtrain::DistributedSampler sampler{group, support::ElasticModel::samples};
        const auto shares = sampler.shares(0);
        const auto step = [&] {
          const dtrain::SampleShare share = shares[job.step() % shares.size()];
          ddp.backward([&](dtrain::Ready ready) { model.backward(share.samples, share.weight, ready); });
          job.commit([&] { model.update(); });
        };
        for (int i = 0; i < 3; ++i) {  // the first rebuilds the buckets, with a message of rank 0
          step();
        }
        group.store().barrier("first steps").wait();  // behind all that they have sent
        const Sent before(proxy);
        for (int i = 0; i < 1000; ++i) {
          step();
        }
        group.store().barrier("last steps").wait();
        const Sent after(proxy);
        CHECK(before.requests > 0);
        CHECK(after.requests - before.requests == 1);  // the barrier's
        CHECK(after.cancels == before.cancels);
        CHECK(after.commits == 1);  // the first of the attempt
        CHECK(after.announcements == 1);
      });
    } catch (const std::exception& error) {
      texts[place] = error.what();
    }
  };
  for (auto& each : proxies) {
    each = std::make_unique<CuttingProxy>(launcher.address().port);
  }
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  CHECK(texts == std::array<std::string, 2>());
}
