// A rank's measurement from anywhere: what is read is what would be written, and a plan is chosen from it.

#include "fuzz/fuzz.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/serializer.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"

namespace ddp = dtrain::ddp;
using ddp::RankTiming;

namespace {

constexpr std::size_t layers = 4;

RankTiming good_timing() {
  return {{{1e-4, 8e-9}, {2e-4, 4e-9}}, 0.9, {0.2, 0.4, 0.6, 0.9}};
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string good = dtrain::to_bytes(good_timing());
  return {good, dtrain::to_bytes(RankTiming{}), good + good, good.substr(0, good.size() - 1)};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  const std::optional<RankTiming> timing = dtrain::try_from_bytes<RankTiming>(text);
  if (!timing) {
    return 0;
  }
  fuzz::require(dtrain::to_bytes(*timing) == text, "what is read is written again as it was");
  fuzz::require(timing->ready.size() <= ddp::max_ready_groups, "rank 0 keeps as much of each rank");
  fuzz::require(timing->costs.size() <= ddp::max_variants, "rank 0 keeps as many costs of each rank");
  const std::vector<RankTiming> timings{good_timing(), *timing};
  if (timing->ready.size() != layers || timing->costs.size() != timings.front().costs.size()) {
    return 0;  // refused beside rank 0's own
  }
  const RankTiming all = ddp::combined(timings, layers, std::size_t{8} << 20);
  const std::vector<ddp::GradientSize> sizes(layers, {std::size_t{2} << 20, dtrain::DType::f32, {}});
  const std::vector<std::size_t> order = ddp::reverse_order(layers);
  const std::vector<double> ready_at = ddp::times_of_parameters(all.ready, order);
  const ddp::PlannedStep settings = ddp::choose_settings({sizes, order, ready_at, all.compute}, {}, all.costs);
  fuzz::require(settings.buckets >= 1 && settings.buckets <= layers, "a plan has the model's gradients");
  fuzz::require(settings.variant < all.costs.size(), "a plan takes a variant that was measured");
  return 0;
}
