#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "unit/ddp/prelude.hpp"

TEST_CASE("16-bit values that have moved are converted to the f32 weights once, and those that have not are not") {
  const auto half = [](float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); };
  std::vector<std::uint16_t> before(32, half(1)), after(32, half(2));
  const auto view_of = [](std::vector<std::uint16_t>& values) {
    return dtrain::TensorView{
        reinterpret_cast<std::byte*>(values.data()), {static_cast<std::int64_t>(values.size())}, DType::bf16, {}};
  };
  const std::vector<Parameter> parameters{{"p", view_of(before), view_of(before)}};
  const BucketPlan plan = plan_buckets(gradient_sizes(parameters), {0, 0});
  PresentValue present{view_of(before), 1};
  const auto keep = [](std::span<float>, std::span<const float>, const dtrain::StepInfo&) {};
  ShardedParameters shares(parameters, plan, 0, 1, 0,
                           ShardedParameters::Rule::of(std::make_shared<const decltype(keep)>(keep)),
                           [&present](std::size_t) { return present; });
  const ShardPiece first = shares.shard(0).own.front();
  const auto weight = [&]() -> float& { return *reinterpret_cast<float*>(shares.state(0, first).data); };
  CHECK(weight() == 1);
  weight() = 1.001F;  // an update that bf16 cannot have
  shares.renew_values();
  CHECK(weight() == 1.001F);
  present = {view_of(after), 2};
  shares.renew_values();
  CHECK(weight() == 2);
  CHECK(shares.parameters()[0].value.data == present.view.data);
  weight() = 2.001F;
  shares.renew_values();
  CHECK(weight() == 2.001F);
}
