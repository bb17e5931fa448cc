#pragma once
/// @file
/// Backend checks: reject models that a backend cannot reduce, before a channel is opened.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// @throws Error (unsupported): "WHAT is on cuda:1, which ...".
template <class Backend>
void check_device(const std::string& what, Device device, Device communication) {
  if (!Backend::supports(device.kind)) {
    throw_error(Errc::unsupported, "{} is on {}, which backend {} does not reduce",
                {what, to_string(device), std::string_view(Backend::name())});
  }
  if (device != communication) {
    throw_error(Errc::unsupported,
                "{} is on {}, but this rank's communication is on {}; a rank's model is on one device",
                {what, to_string(device), to_string(communication)});
  }
}

}  // namespace detail

/// @param communication device of the wrapper's stream
/// @throws Error (unsupported)
template <class Backend>
void check_backend(std::span<const Parameter> parameters, std::span<const TensorView> buffers,
                   const DdpOptions& options, Device communication) {
  const std::string backend_name{std::string_view(Backend::name())};
  if (options.deterministic && backend::determinism_of<Backend> == backend::Determinism::none) {
    throw_error(Errc::unsupported,
                "DdpOptions::deterministic is set, but backend {} does not promise the same bits in every run; use "
                "topology::Ring, whose order of summation is fixed, or another backend",
                {backend_name});
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string described = describe_parameter(i, parameters[i].name);
    detail::check_device<Backend>(described, parameters[i].value.device, communication);
    if (!Backend::reduces(parameters[i].gradient.dtype)) {
      throw_error(Errc::unsupported,
                  "{} has a gradient of {}, which backend {} does not reduce; keep it in a type that the backend "
                  "reduces, such as f32",
                  {described, name(parameters[i].gradient.dtype), backend_name});
    }
    if (options.reduce_op == ReduceOp::average && !backend::averages<Backend>(parameters[i].gradient.dtype)) {
      throw_error(Errc::unsupported,
                  "{} has a gradient of {}, whose average backend {} does not form; DdpOptions::reduce_op = "
                  "ReduceOp::sum reduces it, in a type that holds the sum",
                  {described, name(parameters[i].gradient.dtype), backend_name});
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    detail::check_device<Backend>(format_text("buffer {} of the model", {i}), buffers[i].device, communication);
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
