#pragma once
/// @file
/// The first difference between two ranks' models, as a sentence.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/printable.hpp"
#include "dtrain/ddp/description.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// "f32 [784, 256]", with the device where it is not the host.
inline std::string kind(const ParameterDescription& parameter) {
  return std::string(name(parameter.dtype)) + " " + to_string(parameter.shape) +
         (parameter.device == DeviceKind::cuda ? " on cuda" : "");
}

inline std::string whose(int rank, const std::string& what) {
  return "rank " + std::to_string(rank) + "'s " + what;
}

template <class Value>
std::string option_difference(const char* option, int rank, const Value& mine, int other_rank, const Value& theirs) {
  return whose(rank, std::string("DdpOptions::") + option) + " is " + mine + ", " + whose(other_rank, "is ") + theirs;
}

/// The first of the options that are yes or no.
inline std::optional<std::string> switch_difference(const ModelDescription& mine, int rank,
                                                    const ModelDescription& theirs, int other_rank) {
  using Value = bool ModelDescription::*;  // nvcc writes a member of this type in a way that g++ warns of
  struct Switch {
    const char* option;
    Value value;
  };
  for (const Switch& one : {Switch{"deterministic", &ModelDescription::deterministic},
                            Switch{"reorder_gradients", &ModelDescription::reorder_gradients},
                            Switch{"allow_unused_parameters", &ModelDescription::allow_unused_parameters},
                            Switch{"broadcast_buffers", &ModelDescription::broadcast_buffers}}) {
    if (mine.*one.value != theirs.*one.value) {
      return option_difference(one.option, rank, std::string(mine.*one.value ? "true" : "false"), other_rank,
                               std::string(theirs.*one.value ? "true" : "false"));
    }
  }
  return std::nullopt;
}

inline std::string extra_parameter(int rank, const ModelDescription& longer, int other_rank, std::size_t count) {
  return "rank " + std::to_string(rank) + " has " + std::to_string(longer.parameters.size()) + " parameters, rank " +
         std::to_string(other_rank) + " has " + std::to_string(count) + "; the first that only rank " +
         std::to_string(rank) + " has is " + std::to_string(count) + " " + in_quotes(longer.parameters[count].name) +
         ", " + kind(longer.parameters[count]);
}

}  // namespace detail

/// Options first, then parameters in order. Names both ranks and both things. @returns nothing where all agrees.
inline std::optional<std::string> first_difference(const ModelDescription& mine, int rank,
                                                   const ModelDescription& theirs, int other_rank) {
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
  if (mine.accumulate != theirs.accumulate) {
    return detail::option_difference("accumulate", rank, std::string(name(mine.accumulate)), other_rank,
                                     std::string(name(theirs.accumulate)));
  }
  if (const auto difference = detail::switch_difference(mine, rank, theirs, other_rank)) {
    return difference;
  }
  const std::size_t common = std::min(mine.parameters.size(), theirs.parameters.size());
  for (std::size_t i = 0; i < common; ++i) {
    const ParameterDescription& a = mine.parameters[i];
    const ParameterDescription& b = theirs.parameters[i];
    if (a == b) continue;
    const std::string other_name = a.name == b.name ? "" : in_quotes(b.name) + ", ";
    return detail::whose(rank, "parameter ") + std::to_string(i) + " " + in_quotes(a.name) + " is " + detail::kind(a) +
           ", " + detail::whose(other_rank, "is ") + other_name + detail::kind(b);
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
