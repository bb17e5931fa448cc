#include "dtrain/core/config.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "dtrain/stream/cuda/copy_batch.hpp"
#include "support/allocation_count.hpp"
#include "support/cuda_training_rank.hpp"

namespace {

using dtrain::Step;
using dtrain::stream::cuda::CopyBatch;
using dtrain::stream::cuda::Event;
using support::CudaTrainingRank;
using support::FakeJob;
using support::NcclRank;

/// The fewest allocations of ten steps that five attempts saw: a thread beside may allocate now and then.
template <class F>
std::size_t allocations_of_ten(F step) {
  for (int warm_up = 0; warm_up < 3; ++warm_up)
    step();
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::size_t before = support::allocations.load();
    for (int repeat = 0; repeat < 10; ++repeat)
      step();
    fewest = std::min(fewest, support::allocations.load() - before);
  }
  return fewest;
}

/// What a step enqueues, without DistributedDataParallel: what the runtime allocates for that is not dtrain's.
class BareStep {
 public:
  BareStep(CudaTrainingRank& rank, bool bound)
      : rank_(rank), bound_(bound), nccl_(std::make_shared<FakeJob>(1), 0, 1), produced_(rank.count()) {
    memory_ = support::on_device(std::vector<float>(4096, 0.0F));
    copies_.reserve(rank.count());
  }

  void operator()() {
    const support::StreamRef stream = nccl_.stream.ref();
    for (std::size_t i = 0; i < rank_.count(); ++i) {
      rank_.stream().record(produced_[i]);
      stream.wait(produced_[i]);
      copy(i);
      const dtrain::BufferView view = nccl_.view(memory_, rank_.size(i), dtrain::DType::f32);
      nccl_.communicator.all_reduce(view, view, dtrain::ReduceOp::average, stream);
      copy(i);
    }
    stream.record(done_);
    rank_.stream().wait(done_);
    (void)rank_.wait();
  }

 private:
  void copy(std::size_t i) {
    if (!bound_) {
      copies_.add(memory_.data() + 8192, memory_.data(), rank_.size(i) * sizeof(float));
      copies_.enqueue(nccl_.stream.ref());
    }
  }

  CudaTrainingRank& rank_;
  bool bound_;
  NcclRank nccl_;
  support::DeviceBuffer memory_;
  std::vector<Event> produced_;
  Event done_;
  CopyBatch copies_;
};

}  // namespace

TEST_CASE("a steady step on CUDA allocates nothing beside what the runtime does for its calls") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {.bound = bound});
    const std::size_t with = allocations_of_ten([&] {
      Step step = rank.reducer->begin();
      for (std::size_t i = rank.count(); i-- > 0;)
        step.ready(i, rank.stream().handle());
      step.finish();
      (void)rank.wait();
    });
    BareStep bare(rank, bound);
    const std::size_t without = allocations_of_ten([&] { bare(); });
    CHECK(with <= without);
  }
}
