// Floats of 8 bits: NCCL reduces them on devices that can, and moves them on any.

#include "dtrain/core/types/float8.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/nccl_rank.hpp"
#include "support/thread_group.hpp"

namespace {

using dtrain::DeviceKind;
using dtrain::DType;
using dtrain::Errc;
using dtrain::Error;
using dtrain::float8_e4m3;
using dtrain::float8_e5m2;
using dtrain::ReduceOp;
using dtrain::backend::Nccl;
using support::check;
using support::DeviceBuffer;
using support::FakeJob;
using support::NcclRank;
using support::on_device;
using support::on_host;
using support::RankThread;
using support::run_thread_ranks;

using Policy = dtrain::Policy<dtrain::launch::PerProcess, Nccl>;

/// Whether these headers and so many of the devices reduce floats of 8 bits.
bool reduced_by(int ranks) {
  if (!Nccl::reduces(DType::f8e4m3) || !support::enough_devices(ranks)) return false;
  for (int device = 0; device < ranks; ++device) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    if (major < 9) return false;
  }
  return true;
}

/// 1 and 2 in turns, other turns on each rank: with up to 3 ranks nothing is rounded but an average of 3.
float value_of(std::size_t i, int rank) {
  return (i + static_cast<std::size_t>(rank)) % 3 == 0 ? 2.0F : 1.0F;
}

template <class Float8>
std::vector<Float8> values_of(std::size_t count, int rank) {
  std::vector<Float8> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(Float8(value_of(i, rank)));
  return values;
}

float reduced(ReduceOp op, std::size_t i, int ranks) {
  float result = value_of(i, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const float value = value_of(i, rank);
    result = op == ReduceOp::min       ? std::min(result, value)
             : op == ReduceOp::max     ? std::max(result, value)
             : op == ReduceOp::product ? result * value
                                       : result + value;
  }
  return op == ReduceOp::average ? result / static_cast<float>(ranks) : result;
}

/// An average of 3 is that of factors with the type's digits: within the distance of two neighbours.
template <class Float8>
bool is_near(const std::vector<Float8>& result, ReduceOp op, int ranks) {
  const bool exact = op != ReduceOp::average || ranks != 3;
  const float share = dtrain::dtype_of<Float8>::value == DType::f8e4m3 ? 0.125F : 0.25F;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float expected = reduced(op, i, ranks);
    const float wrong_by = std::fabs(static_cast<float>(result[i]) - expected);
    if (!(wrong_by <= (exact ? 0 : share * expected))) return false;
  }
  return true;
}

template <class Float8>
void expect_reductions(NcclRank& self, RankThread& thread, int ranks) {
  constexpr DType dtype = dtrain::dtype_of<Float8>::value;
  for (const std::size_t count : {std::size_t{1}, std::size_t{4099}}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      const DeviceBuffer memory = on_device(values_of<Float8>(count, thread.rank()));
      const auto view = self.view(memory, count, dtype);
      self.communicator.all_reduce(view, view, op, self.stream.ref());
      const bool right = self.wait() && is_near(on_host<Float8>(memory.data(), count), op, ranks);
      CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " " << dtrain::name(dtype));
    }
  }
  const std::size_t count = 100;
  const DeviceBuffer whole = on_device(std::vector<Float8>(count * static_cast<std::size_t>(ranks), Float8(2)));
  const DeviceBuffer part(count);
  self.communicator.reduce_scatter(self.view(whole, whole.bytes(), dtype), self.view(part, count, dtype), ReduceOp::sum,
                                   self.stream.ref());
  CHECK(self.wait());
  for (const Float8& value : on_host<Float8>(part.data(), count))
    CHECK(static_cast<int>(static_cast<float>(value)) == 2 * ranks);
}

/// The sentence that refuses the call; "" for none.
template <class Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == make_error_code(Errc::unsupported));
    return error.what();
  }
  return "";
}

/// Bytes go their ways, whatever they mean: NaN and infinity among them.
void expect_moves(NcclRank& self, int rank, int ranks) {
  std::vector<std::uint8_t> all_bits(256);
  for (std::size_t i = 0; i < all_bits.size(); ++i)
    all_bits[i] = static_cast<std::uint8_t>(i);
  const DeviceBuffer sent = on_device(rank == 0 ? all_bits : std::vector<std::uint8_t>(256));
  const DeviceBuffer gathered(256 * static_cast<std::size_t>(ranks));
  const DeviceBuffer passed(256);
  const auto stream = self.stream.ref();
  self.communicator.broadcast(self.view(sent, 256, DType::f8e4m3), 0, stream);
  self.communicator.all_gather(self.view(sent, 256, DType::f8e5m2),
                               self.view(gathered, gathered.bytes(), DType::f8e5m2), stream);
  self.communicator.send_recv(self.view(sent, 256, DType::f8e4m3), (rank + 1) % ranks,
                              self.view(passed, 256, DType::f8e4m3), (rank + ranks - 1) % ranks, stream);
  CHECK(self.wait());
  CHECK(on_host<std::uint8_t>(sent.data(), 256) == all_bits);
  CHECK(on_host<std::uint8_t>(gathered.data() + gathered.bytes() - 256, 256) == all_bits);
  CHECK(on_host<std::uint8_t>(passed.data(), 256) == all_bits);
}

/// One parameter of f8e5m2 and one of f32.
struct Model {
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  static constexpr std::int64_t count = 130;

  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    const auto view = [&](const DeviceBuffer& memory, DType dtype) {
      return dtrain::TensorView{memory.data(), {count}, dtype, device};
    };
    return {{"short", view(short_value, DType::f8e5m2), view(short_gradient, DType::f8e5m2)},
            {"long", view(long_value, DType::f32), view(long_gradient, DType::f32)}};
  }

  DeviceBuffer short_value = on_device(std::vector<float8_e5m2>(count, float8_e5m2(1)));
  DeviceBuffer long_value = on_device(std::vector<float>(count, 1));
  DeviceBuffer short_gradient{count};
  DeviceBuffer long_gradient{count * sizeof(float)};
  dtrain::stream::cuda::Stream stream;
};

}  // namespace

TEST_CASE("NCCL reduces floats of 8 bits by every operation, among 1, 2 and 3 ranks") {
  for (const int ranks : {1, 2, 3}) {
    if (!reduced_by(ranks)) {
      dtrain_test::skip("NCCL does not reduce floats of 8 bits on " + std::to_string(ranks) + " devices here");
      continue;
    }
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      NcclRank self(job, thread.rank(), ranks);
      expect_reductions<float8_e4m3>(self, thread, ranks);
      expect_reductions<float8_e5m2>(self, thread, ranks);
    });
  }
}

TEST_CASE("floats of 8 bits move between 1, 2 and 3 ranks on any device") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each of " + std::to_string(ranks) + " ranks");
      continue;
    }
#if DTRAIN_EMULATED_CUDA
    emulation::set_compute_capability(8);
#endif
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      NcclRank self(job, thread.rank(), ranks);
      expect_moves(self, thread.rank(), ranks);
    });
#if DTRAIN_EMULATED_CUDA
    emulation::set_compute_capability(9);
#endif
  }
}

TEST_CASE("gradients of 8 bits are reduced over NCCL in a bucket of their own, beside others") {
  for (const int ranks : {1, 2}) {
    if (!reduced_by(ranks)) {
      dtrain_test::skip("NCCL does not reduce floats of 8 bits on " + std::to_string(ranks) + " devices here");
      continue;
    }
    std::atomic<int> wrong{0};
    const auto ends = support::run_groups<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
      Model model;
      dtrain::DistributedDataParallel ddp{model, group};
      wrong += ddp.plan().buckets.size() == 2 ? 0 : 1;
      for (int step = 0; step < 3; ++step) {
        ddp.backward([&](dtrain::Ready ready) {
          const auto own = static_cast<float>(step + 2 * group.rank());
          support::write(model.short_gradient.data(), std::vector<float8_e5m2>(Model::count, float8_e5m2(own)));
          support::write(model.long_gradient.data(), std::vector<float>(Model::count, own));
          for (const std::size_t i : {std::size_t{1}, std::size_t{0}})
            ready(i, model.stream.ref().handle());
        });
        dtrain::stream::cuda::Event reduced;
        model.stream.ref().record(reduced);
        CHECK(reduced.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(20))) ==
              dtrain::stream::WaitResult::complete);
        const auto mean = static_cast<float>(step + group.world_size() - 1);
        for (const float8_e5m2& value : on_host<float8_e5m2>(model.short_gradient.data(), Model::count))
          wrong += static_cast<float>(value) == mean ? 0 : 1;
        wrong +=
            on_host<float>(model.long_gradient.data(), Model::count) == std::vector<float>(Model::count, mean) ? 0 : 1;
      }
      group.barrier();
    });
    CHECK(wrong == 0);
    for (const support::RankEnd& end : ends)
      CHECK(end.text == "");
  }
}

TEST_CASE("an average of 8 bits over more ranks than the type has digits for is refused") {
  using dtrain::backend::nccl::reduction_of;
  CHECK(reduction_of(ReduceOp::average, DType::f8e4m3, 64) == ncclAvg);
  CHECK(reduction_of(ReduceOp::average, DType::f8e5m2, 16384) == ncclAvg);
  CHECK(reduction_of(ReduceOp::average, DType::f8e4m3, 1) == ncclSum);
  CHECK(reduction_of(ReduceOp::sum, DType::f8e4m3, 1000) == ncclSum);
  CHECK(refusal_of([] { reduction_of(ReduceOp::average, DType::f8e4m3, 65); }) ==
        "an average of f8e4m3 over 65 ranks by NCCL would be wrong, because that type has few digits or none for 1/65; "
        "average f16, bf16 or f32");
  CHECK(refusal_of([] { reduction_of(ReduceOp::average, DType::f8e5m2, 16385); }) != "");
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("on a device that does not reduce 8 bits an all_reduce is refused, and the communicator serves on") {
  if (!reduced_by(1)) return dtrain_test::skip("these headers of NCCL have no floats of 8 bits");
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank self(job, 0, 1);
  const DeviceBuffer memory = on_device(values_of<float8_e4m3>(3, 0));
  const auto view = self.view(memory, 3, DType::f8e4m3);
  emulation::set_compute_capability(8);
  const std::string sentence =
      "NCCL reduces f8e4m3 on GPUs of compute capability 9.0 and more, and cuda:0 has 8.x; reduce f16, bf16 or f32";
  CHECK(refusal_of([&] { self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref()); }) == sentence);
  CHECK(refusal_of([&] { self.communicator.reduce_scatter(view, view, ReduceOp::sum, self.stream.ref()); }) ==
        sentence);
  emulation::set_compute_capability(9);
  self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref());
  CHECK(self.wait());
}

TEST_CASE("what NCCL says where only a peer's device does not reduce 8 bits is in the error") {
  if (!reduced_by(2)) return dtrain_test::skip("these headers of NCCL have no floats of 8 bits");
  emulation::set_compute_capability(8, 1);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2);
    self.communicator.barrier(self.stream.ref());
    CHECK(self.wait());
    if (thread.rank() == 1) return;
    const DeviceBuffer memory = on_device(values_of<float8_e4m3>(3, 0));
    const auto view = self.view(memory, 3, DType::f8e4m3);
    CHECK_THROWS_WITH_AS(self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref()),
                         doctest::Contains("last error: FP8 reduction support begins with sm90 capable devices."),
                         Error);
  });
  emulation::set_compute_capability(9);
}
#endif
