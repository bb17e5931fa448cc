#pragma once
/// @file
/// One rank with a reducer over NCCL, a model of a few gradients on its device, and streams that "compute" them: a
/// kernel here is a copy from pinned memory after some time, which a GPU and the emulation both do.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "support/nccl_rank.hpp"
#include "support/sanitized.hpp"

namespace support {

using NcclReducer = dtrain::ddp::Reducer<dtrain::backend::Nccl::Communicator>;

/// Parameter i is called "p<i>" and has sizes[i] floats.
class CudaTrainingRank {
 public:
  struct Wanted {
    std::vector<std::size_t> sizes{5, 1000, 17, 64};
    dtrain::ddp::BucketCaps caps{0, 0};  ///< a bucket for each
    bool bound = false;
    std::size_t streams = 1;
    std::chrono::nanoseconds timeout = std::chrono::seconds(is_sanitized ? 60 : 10);
    dtrain::DdpOptions options{};
    dtrain::ddp::ReducerParts parts{};
    dtrain::ddp::HookFunctions<dtrain::backend::Nccl::Communicator> hook{};
  };

  CudaTrainingRank(const std::shared_ptr<FakeJob>& job, int rank, int size, Wanted wanted)
      : CudaTrainingRank(NcclRank(job, rank, size, "ddp", wanted.timeout), std::move(wanted)) {}

  /// Over an open channel.
  CudaTrainingRank(NcclRank opened, Wanted wanted) : nccl(std::move(opened)), sizes_(wanted.sizes) {
    const int rank = nccl.communicator.rank();
    for (std::size_t i = 0; i < wanted.streams; ++i)
      streams_.emplace_back(dtrain::stream::cuda::Priority::normal);
    const dtrain::Device device{dtrain::DeviceKind::cuda, nccl.device};
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      gradients_.push_back(on_device(std::vector<float>(sizes_[i], 0.0F)));
      sources_.emplace_back(std::max<std::size_t>(sizes_[i], 1) * sizeof(float));
      results_.emplace_back(std::max<std::size_t>(sizes_[i], 1) * sizeof(float));
      const dtrain::TensorView view{
          gradients_[i].data(), {static_cast<std::int64_t>(sizes_[i])}, dtrain::DType::f32, device};
      parameters.push_back({"p" + std::to_string(i), view, view});
    }
    dtrain::ddp::FailureContext context{nccl.latch, rank, "host-" + std::to_string(rank), wanted.timeout, {}};
    reducer = std::make_unique<NcclReducer>(
        std::move(nccl.communicator), nccl.stream.ref(), parameters,
        dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), wanted.caps), wanted.options,
        std::move(context), std::move(wanted.parts), std::move(wanted.hook));
    for (std::size_t i = 0; wanted.bound && i < sizes_.size(); ++i)
      parameters[i].gradient = reducer->bind(i);
  }

  std::size_t count() const { return sizes_.size(); }
  std::size_t size(std::size_t i) const { return sizes_[i]; }

  StreamRef stream(std::size_t i = 0) const { return streams_[i].ref(); }

  /// What "the backward pass" computes next for gradient i. Not while it is being computed.
  void prepare(std::size_t i, float value) {
    float* const source = reinterpret_cast<float*>(sources_[i].data());
    std::fill_n(source, sizes_[i], value);
  }

  void prepare_all(float value) {
    for (std::size_t i = 0; i < count(); ++i)
      prepare(i, value);
  }

  /// Enqueues the computation of gradient i, into its own memory or other.
  void compute(std::size_t i, StreamRef on, std::byte* into = nullptr) const {
    copy(into != nullptr ? into : parameters[i].gradient.data, sources_[i].data(), i, cudaMemcpyHostToDevice, on);
  }

  /// Enqueues the reading of gradient i, as an optimizer does.
  void use(std::size_t i, StreamRef on) {
    copy(results_[i].data(), parameters[i].gradient.data, i, cudaMemcpyDeviceToHost, on);
  }

  void use_all(StreamRef on) {
    for (std::size_t i = 0; i < count(); ++i)
      use(i, on);
  }
  void use_all() { use_all(stream()); }

  /// A step of one stream, from the last gradient to the first: of those that are there, or of computed ones.
  void step(const dtrain::StepOptions& options = {}, bool computes = false) {
    dtrain::Step open = reducer->begin("begin()", options);
    for (std::size_t i = count(); i-- > 0;) {
      if (computes) compute(i, stream());
      open.ready(i, stream().handle());
    }
    open.finish();
  }
  void computed_step(const dtrain::StepOptions& options = {}) { step(options, true); }

  /// What was read. After the stream has run it.
  std::vector<float> result(std::size_t i) const {
    const float* const first = reinterpret_cast<const float*>(results_[i].data());
    return {first, first + sizes_[i]};
  }

  /// Blocking: until all streams have run what they hold. @returns whether they did
  bool wait() const {
    bool done = true;
    for (const dtrain::stream::cuda::Stream& stream : streams_)
      done = completes(stream.ref()) && done;
    return done;
  }

  NcclRank nccl;
  std::vector<dtrain::Parameter> parameters;

 private:
  void copy(std::byte* to, const std::byte* from, std::size_t i, cudaMemcpyKind kind, StreamRef on) const {
    if (sizes_[i] != 0) {
      check(cudaMemcpyAsync(to, from, sizes_[i] * sizeof(float), kind, on.native()), "cudaMemcpyAsync");
    }
  }

  std::vector<std::size_t> sizes_;
  std::vector<DeviceBuffer> gradients_;
  std::vector<dtrain::stream::cuda::PinnedBuffer> sources_;
  std::vector<dtrain::stream::cuda::PinnedBuffer> results_;
  std::vector<dtrain::stream::cuda::Stream> streams_;

 public:
  std::unique_ptr<NcclReducer> reducer;  ///< goes first
};

/// The mean over ranks 0..ranks-1 of `of(rank)`.
template <class F>
float mean_over_ranks(int ranks, F of) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank)
    sum += of(rank);
  return sum / static_cast<float>(ranks);
}

}  // namespace support
