#include "support/allocation_count.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

/// While it lives, the emulation's own allocations are not counted; a real runtime's are.
class RuntimeUncounted {
 public:
  RuntimeUncounted() {
#if DTRAIN_EMULATED_CUDA
    support::is_uncounted.store(&emulation::in_runtime);
#endif
  }
  RuntimeUncounted(const RuntimeUncounted&) = delete;
  RuntimeUncounted& operator=(const RuntimeUncounted&) = delete;
  ~RuntimeUncounted() {
    support::is_uncounted.store(nullptr);
  }
};

/// The fewest allocations of ten steps that many attempts saw: what the runtime allocates depends on how far its
/// threads have come.
template <class F>
std::size_t fewest_allocations(int attempts, F step) {
  for (int warm_up = 0; warm_up < 3; ++warm_up)
    step();
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (int attempt = 0; attempt < attempts; ++attempt) {
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
  BareStep(CudaTrainingRank& rank, bool bound, bool measures)
      : rank_(rank),
        bound_(bound),
        measures_(measures),
        nccl_(std::make_shared<FakeJob>(1), 0, 1),
        produced_(rank.count()) {
    memory_ = support::on_device(std::vector<float>(5 * most_bytes / sizeof(float), 0.0F));
    copies_.reserve(rank.count());
    CHECK(kernels_.load(norm_, norm_, nccl_.stream.ref()));
  }

  void operator()() {
    const support::StreamRef stream = nccl_.stream.ref();
    for (std::size_t i = 0; i < rank_.count(); ++i) {
      rank_.stream().record(produced_[i]);
      if (bound_) {
        stream.wait(produced_[i]);
      } else {
        packing_.ref().wait(produced_[i]);
        copy(1, i, packing_.ref());
        packing_.ref().record(packed_);
        stream.wait(packed_);
      }
      const dtrain::BufferView view = nccl_.view(memory_, rank_.size(i), dtrain::DType::f32);
      nccl_.communicator.enqueue(AllReduce{view, view, dtrain::ReduceOp::average}, stream);
      if (measures_) {
        const dtrain::BufferView padded = nccl_.view(memory_, (rank_.size(i) + 15) / 16 * 16, dtrain::DType::f32);
        SquareSumKernel::find(dtrain::DType::f32).enqueue(padded, reinterpret_cast<double*>(sums_.data()), stream);
      }
      if (!bound_) {
        stream.record(reduced_);
        unpacking_.ref().wait(reduced_);
        copy(3, i, unpacking_.ref());
      }
    }
    if (measures_) kernels_.measure(norm_, norm_, nullptr, 0, stream);
    if (!bound_) {
      unpacking_.ref().record(unpacked_);
      stream.wait(unpacked_);
    }
    stream.record(done_);
    if (!bound_) packing_.ref().wait(done_);
    rank_.stream().wait(done_);
    (void)rank_.wait();
  }

 private:
  static constexpr std::size_t most_bytes = 8192;  ///< of a gradient

  /// From memory of its own to memory of its own, which other streams do not use.
  void copy(std::size_t place, std::size_t i, support::StreamRef stream) {
    std::byte* const from = memory_.data() + place * most_bytes;
    copies_.add(from + most_bytes, from, rank_.size(i));
    copies_.enqueue(1, stream);
  }

  CudaTrainingRank& rank_;
  bool bound_;
  bool measures_;
  NcclRank nccl_;
  support::DeviceBuffer memory_;
  dtrain::stream::cuda::PinnedBuffer sums_{4096};
  dtrain::stream::cuda::PinnedBuffer norms_{sizeof(DeviceNorm)};
  DeviceNorm* norm_ = reinterpret_cast<DeviceNorm*>(norms_.data());
  NormKernels kernels_;
  dtrain::stream::cuda::Stream packing_;
  dtrain::stream::cuda::Stream unpacking_;
  std::vector<Event> produced_;
  Event packed_;
  Event reduced_;
  Event unpacked_;
  Event done_;
  ScaledCopyBatch copies_{dtrain::DType::f32, dtrain::DType::f32};
};

/// The calls to the runtime of an all_reduce through host memory of one or more pieces, without the host's part.
class BareStaging {
 public:
  static constexpr std::size_t most_pieces = 3;

  BareStaging(std::size_t count, bool through_slots)
      : bytes_(count * sizeof(float)), through_slots_(through_slots), device_(bytes_), host_(bytes_) {}

  void operator()(const dtrain::stream::cuda::StreamRef& stream) {
    using dtrain::stream::cuda::check;
    const dtrain::stream::cuda::DeviceGuard guard(device_.device());
    const support::StreamRef upload = upload_.ref();
    for (std::size_t begin = 0, i = 0; begin < bytes_; begin += piece_bytes, ++i) {
      const std::size_t length = std::min(piece_bytes, bytes_ - begin);
      Piece& piece = pieces_[i];
      piece.arrived.reset();
      if (through_slots_) stream.wait(piece.returned);
      stream.record(piece.reached);
      check(cudaMemcpyAsync(host_.data() + begin, device_.data() + begin, length, cudaMemcpyDeviceToHost,
                            stream.native()),
            "cudaMemcpyAsync");
      stream.record(piece.departed);
      upload.wait(piece.departed);
      upload.wait_unwatched(piece.arrived, dtrain::Deadline::after(std::chrono::hours(1)));
      check(cudaMemcpyAsync(device_.data() + begin, host_.data() + begin, length, cudaMemcpyHostToDevice,
                            upload.native()),
            "cudaMemcpyAsync");
      if (through_slots_) upload.record(piece.returned);
      static_cast<void>(dtrain::stream::cuda::current_device());  // as the thread does that runs the host's part
      piece.arrived.signal();
    }
    upload.record(joined_);
    stream.wait(joined_);
    stream.record(last_);
  }

 private:
  static constexpr std::size_t piece_bytes = dtrain::backend::staged::slot_bytes;

  struct Piece {
    Event reached;
    Event departed;
    Event returned;
    dtrain::stream::cuda::ExternalEvent arrived;
  };

  const std::size_t bytes_;
  const bool through_slots_;
  support::DeviceBuffer device_;
  dtrain::stream::cuda::PinnedBuffer host_;
  dtrain::stream::cuda::Stream upload_;
  std::array<Piece, most_pieces> pieces_;
  Event joined_;
  Event last_;
};

}  // namespace

TEST_CASE("a steady step on CUDA allocates nothing beside what the runtime does for its calls") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const RuntimeUncounted uncounted;
  for (const int kind : {0, 1, 2, 3}) {
    const bool bound = kind % 2 != 0;
    const bool measures = kind / 2 != 0;
    CAPTURE(bound);
    CAPTURE(measures);
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, {.bound = bound});
    BareStep bare(rank, bound, measures);
    std::size_t with = std::numeric_limits<std::size_t>::max();
    std::size_t without = with;
    // On a loaded machine the runtime's threads may be late in all attempts of a round, and then allocate more.
    for (int round = 0; round < 20 && (round == 0 || with > without); ++round) {
      with = std::min(with, fewest_allocations(40, [&] {
                        rank.step({.measure_norm = measures});
                        (void)rank.wait();
                        if (measures) (void)rank.reducer->gradient_norm();
                      }));
      without = std::min(without, fewest_allocations(40, [&] { bare(); }));
    }
    CHECK(with <= without);
  }
}

TEST_CASE("steady operations through host memory allocate nothing beside what the runtime does for their calls") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const RuntimeUncounted uncounted;
  const std::size_t count = 600'001;
  std::barrier both(2);
  // Each of 400 steps has a deadline; all together may be slow on a loaded machine.
  const support::Ranks ranks(2, "staged", std::chrono::seconds(20), std::chrono::seconds(120));
  support::run_ranks<support::StagedRank<>>(ranks, [&](support::StagedRank<>& rank, support::RankThread& self) {
    const auto arena =
        rank.communicator.allocate_blocking(count * sizeof(float), dtrain::Deadline::after(std::chrono::seconds(60)));
    Event done;
    const auto wait = [&] {
      rank.ref().record(done);
      CHECK(done.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(60))) ==
            dtrain::stream::WaitResult::complete);
      both.arrive_and_wait();
    };
    for (const bool through_slots : {false, true}) {
      self.doing(through_slots ? "reducing other memory" : "reducing the channel's memory");
      const dtrain::BufferView view = through_slots ? rank.space(count) : rank.view(arena.data(), count);
      BareStaging bare(count, through_slots);
      both.arrive_and_wait();
      const std::size_t with = fewest_allocations(10, [&] {
        both.arrive_and_wait();  // nobody begins before all have counted
        rank.communicator.enqueue(AllReduce{view, view, dtrain::ReduceOp::average}, rank.ref());
        wait();
      });
      both.arrive_and_wait();
      const std::size_t without = fewest_allocations(10, [&] {
        both.arrive_and_wait();
        bare(rank.ref());
        wait();
      });
      both.arrive_and_wait();
      CHECK(with <= without);
      both.arrive_and_wait();
    }
  });
}
