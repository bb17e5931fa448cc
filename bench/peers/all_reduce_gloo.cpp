// A rank of all_reduce_bench --backend=gloo, or its launcher: dtrain over Gloo ("foreign"), and Gloo's own
// algorithms in the same process, over connections of the same kind ("ring", which is its choice, and "bcube").

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/all_reduce/dtrain_rank.hpp"
#include "bench/all_reduce/measure.hpp"
#include "dtrain/dtrain.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo, dtrain::topology::Flat>;

/// The job's store, as Gloo wants one.
class JobStore : public gloo::rendezvous::Store {
 public:
  JobStore(dtrain::rendezvous::Store store, dtrain::Deadline deadline)
      : store_(store.with_prefix("gloo-own/")), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(key, std::string(data.begin(), data.end()), deadline_).wait();
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(key, deadline_).wait();
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      static_cast<void>(get(key));
    }
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override { wait(keys); }

 private:
  dtrain::rendezvous::Store store_;
  dtrain::Deadline deadline_;
};

/// Gloo as its users call it.
class GlooRank {
 public:
  explicit GlooRank(const dtrain::ProcessGroup<Policy>& group)
      : context_(std::make_shared<gloo::rendezvous::Context>(group.rank(), group.world_size())) {
    JobStore store(group.store(), dtrain::Deadline::after(group.timeout()));
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context_->connectFullMesh(store, device);
  }

  void all_reduce(std::byte* buffer, std::size_t bytes, bool bcube) {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(bcube ? gloo::AllreduceOptions::Algorithm::BCUBE : gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(reinterpret_cast<float*>(buffer), bytes / sizeof(float));
    void (*const sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
    options.setReduceFunction(sum);
    options.setTag(tag_++);
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::uint32_t tag_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto body = [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    if (arguments.size() < 3) {
      return 2;
    }
    bench::RequestSource source(arguments[1], group.rank());
    const bench::ForeignMemory memory(std::stoull(arguments[2]));
    const bench::Pattern pattern(group.rank(), group.world_size(), "f32");
    GlooRank gloo(group);
    auto communicator = dtrain::group::GroupAccess::of(group).open_channel("bench");
    std::uint64_t iteration = 0;
    const auto wait = [&] {
      dtrain::stream::host::Event event;
      group.stream().record(event);
      dtrain::backend::block_until_complete(event, communicator, *dtrain::group::GroupAccess::of(group).failure(),
                                            group.timeout(), group.rank());
    };
    for (bench::Request request; source.next(request);) {
      const auto meet = [&] {
        communicator.enqueue(dtrain::backend::Barrier{}, group.stream());
        wait();
      };
      const auto reduce = [&](std::byte* buffer) {
        if (request.memory == "foreign") {
          const dtrain::BufferView view{buffer, request.bytes / sizeof(float), dtrain::DType::f32, {}};
          communicator.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, group.stream());
          wait();
        } else {
          gloo.all_reduce(buffer, request.bytes, request.memory == "bcube");
        }
      };
      source.answer(bench::measure(request, pattern, memory.data(), iteration, meet, reduce));
    }
    return 0;
  };
  return dtrain::run<Policy>(argc, argv, body);
}
