#pragma once
/// @file
/// SavedPlan: a measured bucket plan (PlanSettings) and conditions of its reuse (PlanConditions), in a checkpoint.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Most variants of a communicator (backend::HasVariants) that are measured.
inline constexpr std::size_t max_variants = 8;

/// Sizes of buckets, and the variant of all_reduce that reduces them.
struct PlanSettings {
  BucketCaps caps;
  std::size_t variant = 0;

  friend bool operator==(const PlanSettings&, const PlanSettings&) = default;
};

/// Conditions that a saved plan was measured under. The plan is used again if all of them are equal.
struct PlanConditions {
  int world_size = 1;
  int ranks_on_host = 1;
  std::int64_t model = 0;  ///< see digest_of

  friend bool operator==(const PlanConditions&, const PlanConditions&) = default;
};

/// A plan as the numbers of a checkpoint. The first is the format: 1, and 256 for each variant before the plan's own.
struct SavedPlan {
  static constexpr std::int64_t format_number = 1;
  static constexpr std::int64_t for_each_variant = 256;

  PlanConditions conditions;
  PlanSettings settings;

  SavedPlanNumbers numbers() const noexcept {
    constexpr std::size_t most = std::numeric_limits<std::int64_t>::max();
    return {format_number + for_each_variant * static_cast<std::int64_t>(settings.variant),
            conditions.world_size,
            conditions.ranks_on_host,
            conditions.model,
            static_cast<std::int64_t>(std::min(settings.caps.first_bucket_bytes, most)),
            static_cast<std::int64_t>(std::min(settings.caps.bucket_bytes, most))};
  }

  /// Untrusted numbers. @returns nullopt if they describe no plan
  static std::optional<SavedPlan> from(const SavedPlanNumbers& numbers) noexcept {
    const auto [format, world_size, ranks_on_host, model, first, bucket] = numbers;
    constexpr std::int64_t most_ranks = std::int64_t{1} << 30;
    if (format < 0 || format % for_each_variant != format_number || world_size < 1 || world_size > most_ranks ||
        ranks_on_host < 1 || ranks_on_host > most_ranks || first < 0 || bucket < 0) {
      return std::nullopt;
    }
    const auto variant = static_cast<std::size_t>(format / for_each_variant);
    if (variant >= max_variants) return std::nullopt;
    return SavedPlan{{static_cast<int>(world_size), static_cast<int>(ranks_on_host), model},
                     {{static_cast<std::size_t>(first), static_cast<std::size_t>(bucket)}, variant}};
  }
};

/// Digest of the gradients' sizes and types, in the model's order, and of the names of the variants if there are any.
inline std::int64_t digest_of(std::span<const GradientSize> sizes, std::span<const char* const> variants = {}) {
  Serializer writer;
  for (const GradientSize& size : sizes) {
    auto bytes = static_cast<std::uint64_t>(size.bytes);
    DType dtype = size.dtype;
    writer.number(bytes);
    writer.choice(dtype, first_dtype, last_dtype);
  }
  for (const char* const variant : variants) {
    std::string name = variant;
    writer.text(name, name.size());
  }
  const Sha256Digest digest = Sha256().update(writer.characters()).digest();
  std::int64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return number;
}

}  // namespace DTRAIN_NAMESPACE::ddp
