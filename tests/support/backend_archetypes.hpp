#pragma once
/// @file
/// The least that models Backend, and for each requirement a type that lacks only that.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "support/communicator_archetypes.hpp"

namespace archetype {

enum class BackendLacks { nothing, name, devices, dtypes, opening, stream };

struct StreamOwner {
  Stream<> ref() const noexcept { return {}; }
};
struct StreamOwnerWithoutRef {};

template <BackendLacks Lack>
struct BackendStreamOwner {
  using StreamOwner = archetype::StreamOwner;
};
template <>
struct BackendStreamOwner<BackendLacks::stream> {
  using StreamOwner = StreamOwnerWithoutRef;
};

template <BackendLacks Lack = BackendLacks::nothing, class CommunicatorType = archetype::Communicator<>>
struct Backend : BackendStreamOwner<Lack> {
  using Communicator = CommunicatorType;

  static std::string_view name() noexcept requires(Lack != BackendLacks::name) { return "archetype"; }
  static bool supports(dtrain::DeviceKind) noexcept requires(Lack != BackendLacks::devices) { return true; }
  static bool reduces(dtrain::DType) noexcept requires(Lack != BackendLacks::dtypes) { return true; }
  static Communicator open_blocking(const dtrain::backend::ChannelContext&,
                                    dtrain::Deadline) requires(Lack != BackendLacks::opening) {
    return {};
  }
};

}  // namespace archetype
