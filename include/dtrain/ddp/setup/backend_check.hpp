#pragma once
/// @file
/// check_backend(): rejects a model that its backend cannot reduce, before a channel is opened.

#include <span>
#include <string>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Reductions of a backend.
struct BackendAbilities {
  std::string_view name;
  bool is_deterministic;
  bool (*supports)(DeviceKind);
  bool (*reduces)(DType);
  bool (*averages)(DType);
};

/// @param communication device of the wrapper's stream
/// @throws Error (unsupported)
void check_backend(const BackendAbilities& backend, std::span<const Parameter> parameters,
                   std::span<const TensorView> buffers, const DdpOptions& options, Device communication);

/// The abilities of `Backend`, for check_backend.
template <class Backend>
BackendAbilities abilities_of() {
  return {Backend::name(), backend::determinism_of<Backend> != backend::Determinism::none,
          [](DeviceKind kind) -> bool { return Backend::supports(kind); },
          [](DType dtype) -> bool { return Backend::reduces(dtype); },
          [](DType dtype) -> bool { return backend::averages<Backend>(dtype); }};
}

#if DTRAIN_DEFINITIONS

namespace detail {

/// @throws Error (unsupported): "WHAT is on cuda:1, which ...".
inline void check_device(const BackendAbilities& backend, const std::string& what, Device device,
                         Device communication) {
  if (!backend.supports(device.kind)) {
    throw_error(Errc::unsupported, "{} is on {}, which backend {} does not reduce",
                {what, to_string(device), backend.name});
  }
  if (device != communication) {
    throw_error(Errc::unsupported,
                "{} is on {}, but this rank's communication is on {}; a rank's model is on one device",
                {what, to_string(device), to_string(communication)});
  }
}

}  // namespace detail

DTRAIN_DEFINED void check_backend(const BackendAbilities& backend, std::span<const Parameter> parameters,
                                  std::span<const TensorView> buffers, const DdpOptions& options,
                                  Device communication) {
  if (options.deterministic && !backend.is_deterministic) {
    throw_error(Errc::unsupported,
                "DdpOptions::deterministic is set, but backend {} does not promise the same bits in every run; use "
                "topology::Ring, whose order of summation is fixed, or another backend",
                {backend.name});
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string described = describe_parameter(i, parameters[i].name);
    const DType dtype = parameters[i].gradient.dtype;
    detail::check_device(backend, described, parameters[i].value.device, communication);
    if (!backend.reduces(dtype)) {
      throw_error(Errc::unsupported,
                  "{} has a gradient of {}, which backend {} does not reduce; keep it in a type that the backend "
                  "reduces, such as f32",
                  {described, name(dtype), backend.name});
    }
    if (options.reduce_op == ReduceOp::average && !backend.averages(dtype)) {
      throw_error(Errc::unsupported,
                  "{} has a gradient of {}, whose average backend {} does not form; DdpOptions::reduce_op = "
                  "ReduceOp::sum reduces it, in a type that holds the sum",
                  {described, name(dtype), backend.name});
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    detail::check_device(backend, format_text("buffer {} of the model", {i}), buffers[i].device, communication);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
