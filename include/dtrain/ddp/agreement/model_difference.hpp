#pragma once
/// @file
/// Model difference: the first difference between two ranks' models, as a sentence.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// "f32 [784, 256]", with the device if it is not the host.
inline std::string kind(const ParameterSignature& parameter) {
  return format_text("{} {}{}", {name(parameter.dtype), to_string(parameter.shape),
                                 parameter.device == DeviceKind::cuda ? " on cuda" : ""});
}

inline std::string hook_of(const ModelSignature& signature) {
  return signature.hook.empty() ? "an all-reduce" : signature.hook;
}

inline std::string option_difference(const char* option, int rank, std::string_view mine, int other_rank,
                                     std::string_view theirs) {
  return format_text("rank {}'s DdpOptions::{} is {}, rank {}'s is {}", {rank, option, mine, other_rank, theirs});
}

/// The first difference of the boolean options.
inline std::optional<std::string> flag_difference(const ModelSignature& mine, int rank, const ModelSignature& theirs,
                                                  int other_rank) {
  using Value = bool ModelSignature::*;  // nvcc emits members of this type in a way that g++ warns about
  struct Flag {
    const char* option;
    Value value;
  };
  for (const Flag& one : {Flag{"deterministic", &ModelSignature::deterministic},
                          Flag{"reorder_gradients", &ModelSignature::reorder_gradients},
                          Flag{"allow_unused_parameters", &ModelSignature::allow_unused_parameters},
                          Flag{"broadcast_buffers", &ModelSignature::broadcast_buffers}}) {
    if (mine.*one.value != theirs.*one.value) {
      return option_difference(one.option, rank, std::string(mine.*one.value ? "true" : "false"), other_rank,
                               std::string(theirs.*one.value ? "true" : "false"));
    }
  }
  return std::nullopt;
}

inline std::string extra_parameter(int rank, const ModelSignature& longer, int other_rank, std::size_t count) {
  return format_text("rank {} has {} parameters, rank {} has {}; the first that only rank {} has is {} {}, {}",
                     {rank, longer.parameters.size(), other_rank, count, rank, count,
                      in_quotes(longer.parameters[count].name), kind(longer.parameters[count])});
}

}  // namespace detail

/// Compares options first, then parameters in order. The sentence names both ranks and both values.
/// @returns nullopt if the models agree
inline std::optional<std::string> first_difference(const ModelSignature& mine, int rank, const ModelSignature& theirs,
                                                   int other_rank) {
  if (mine.bucket_bytes != theirs.bucket_bytes) {
    return detail::option_difference("bucket_bytes", rank, std::to_string(mine.bucket_bytes), other_rank,
                                     std::to_string(theirs.bucket_bytes));
  }
  if (mine.first_bucket_bytes != theirs.first_bucket_bytes) {
    return detail::option_difference("first_bucket_bytes", rank, std::to_string(mine.first_bucket_bytes), other_rank,
                                     std::to_string(theirs.first_bucket_bytes));
  }
  if (mine.reduce_op != theirs.reduce_op) {
    return detail::option_difference("reduce_op", rank, std::string(name(mine.reduce_op)), other_rank,
                                     std::string(name(theirs.reduce_op)));
  }
  if (mine.measures_plan != theirs.measures_plan) {
    return detail::option_difference("plan", rank, mine.measures_plan ? "measured" : "given", other_rank,
                                     theirs.measures_plan ? "measured" : "given");
  }
  if (mine.accumulate != theirs.accumulate) {
    return detail::option_difference("accumulate", rank, std::string(name(mine.accumulate)), other_rank,
                                     std::string(name(theirs.accumulate)));
  }
  if (mine.hook != theirs.hook) {
    return format_text("rank {} reduces gradients by {}, rank {} by {}",
                       {rank, detail::hook_of(mine), other_rank, detail::hook_of(theirs)});
  }
  if (mine.scales_averages != theirs.scales_averages) {
    return format_text(
        "the CUDA driver of rank {} does not load dtrain's kernel that scales gradients, that of rank {} does; run one "
        "driver version on all hosts, or set DdpOptions::reduce_op to sum and divide the loss",
        {mine.scales_averages ? other_rank : rank, mine.scales_averages ? rank : other_rank});
  }
  if (const auto difference = detail::flag_difference(mine, rank, theirs, other_rank)) {
    return difference;
  }
  const std::size_t common = std::min(mine.parameters.size(), theirs.parameters.size());
  for (std::size_t i = 0; i < common; ++i) {
    const ParameterSignature& a = mine.parameters[i];
    const ParameterSignature& b = theirs.parameters[i];
    if (a == b) continue;
    const std::string other_name = a.name == b.name ? "" : in_quotes(b.name) + ", ";
    return format_text("rank {}'s parameter {} {} is {}, rank {}'s is {}{}",
                       {rank, i, in_quotes(a.name), detail::kind(a), other_rank, other_name, detail::kind(b)});
  }
  if (mine.parameters.size() > common) {
    return detail::extra_parameter(rank, mine, other_rank, common);
  }
  if (theirs.parameters.size() > common) {
    return detail::extra_parameter(other_rank, theirs, rank, common);
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp
