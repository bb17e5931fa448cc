// Floats of 8 bits over NCCL: they move on any device, and their reductions are refused.

#include "dtrain/core/types/float8.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::float8_e4m3;
using dtrain::float8_e5m2;

using Policy = dtrain::Policy<dtrain::launch::PerProcess, Nccl>;

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
  self.communicator.enqueue(Broadcast{self.view(sent, 256, DType::f8e4m3), 0}, stream);
  self.communicator.enqueue(
      AllGather{self.view(sent, 256, DType::f8e5m2), self.view(gathered, gathered.bytes(), DType::f8e5m2)}, stream);
  self.communicator.enqueue(SendRecv{self.view(sent, 256, DType::f8e4m3), (rank + 1) % ranks,
                                     self.view(passed, 256, DType::f8e4m3), (rank + ranks - 1) % ranks},
                            stream);
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

TEST_CASE("floats of 8 bits move between 1, 2 and 3 ranks") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each of " + std::to_string(ranks) + " ranks");
      continue;
    }
    run_ranks<NcclRank>(ranks, [&](NcclRank& self, RankThread& thread) { expect_moves(self, thread.rank(), ranks); });
  }
}

TEST_CASE("a model whose gradients have 8 bits is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto ends = support::run_groups<Policy>(1, [&](const dtrain::ProcessGroup<Policy>& group) {
    Model model;
    CHECK(refusal_of([&] { dtrain::DistributedDataParallel(model, group); }) ==
          "parameter 0 'short' has a gradient of f8e5m2, which backend Nccl does not reduce; keep it in a type that "
          "the backend reduces, such as f32");
  });
  CHECK(ends[0].text == "");
  CHECK_FALSE(Nccl::reduces(DType::f8e4m3));
}

TEST_CASE("a reduction of 8 bits is refused before NCCL sees it, and the communicator serves on") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank self(job, 0, 1);
  const DeviceBuffer memory = on_device(std::vector<float8_e4m3>(3, float8_e4m3(1)));
  const auto view = self.view(memory, 3, DType::f8e4m3);
  const std::string sentence =
      " of 3 f8e4m3: floats of 8 bits can be moved, and not reduced, because they have too few digits for a sum or an "
      "average; reduce them as f16, bf16 or f32";
  CHECK(refusal_of([&] {
          self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
        }) == "all_reduce" + sentence);
  CHECK(refusal_of([&] {
          self.communicator.enqueue(ReduceScatter{view, view, ReduceOp::average}, self.stream.ref());
        }) == "reduce_scatter" + sentence);
  self.communicator.enqueue(Broadcast{view, 0}, self.stream.ref());
  CHECK(self.wait());
}
