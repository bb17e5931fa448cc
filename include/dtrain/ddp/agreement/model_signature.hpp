#pragma once
/// @file
/// ModelSignature: names, shapes, types and options of a wrapped model. agree_blocking(): fails on all ranks alike with
/// the first difference. ParameterSignature: one tensor.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest signature that a rank reads.
inline constexpr std::size_t max_signature_bytes = std::size_t{64} << 20;

/// Only the kind of a device is compared: each rank has its own GPU.
struct ParameterSignature {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::host;

  friend bool operator==(const ParameterSignature&, const ParameterSignature&) = default;
};

/// Parameters, buffers and options that must be the same on all ranks.
struct ModelSignature {
  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  ReduceOp reduce_op = ReduceOp::average;
  std::vector<ParameterSignature> parameters;  ///< followed by the buffers
  bool deterministic = false;
  bool reorder_gradients = false;
  bool allow_unused_parameters = false;
  bool broadcast_buffers = false;
  Accumulate accumulate = Accumulate::element;
  bool scales_averages = false;          ///< see setup/scaled_averages.hpp
  std::string hook{};                    ///< its description; empty: none
  bool measures_plan = false;            ///< DdpOptions::plan
  std::uint64_t check_values_every = 0;  ///< DTRAIN_CHECK_VALUES

  friend bool operator==(const ModelSignature&, const ModelSignature&) = default;
};

/// Equal signatures give the same bytes; different signatures give different bytes.
void fields(Serializer& of, ModelSignature& signature);

/// The signature of a model's parameters and buffers, in the model's order.
ModelSignature model_signature(std::span<const Parameter> parameters, const DdpOptions& options,
                               std::span<const TensorView> buffers = {}, bool scales_averages = false,
                               const std::string& hook = {});

namespace detail {

/// "f32 [784, 256]", with the device if it is not the host.
inline std::string kind(const ParameterSignature& parameter) {
  return format_text("{} {}{}", {name(parameter.dtype), to_string(parameter.shape),
                                 parameter.device == DeviceKind::cuda ? " on cuda" : ""});
}

inline std::string hook_of(const ModelSignature& signature) {
  return signature.hook.empty() ? "an all-reduce" : signature.hook;
}

/// The options of a signature: the name in DdpOptions, and the value as text.
inline std::array<std::pair<const char*, std::string>, 9> options_of(const ModelSignature& signature) {
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return {{{"bucket_bytes", std::to_string(signature.bucket_bytes)},
           {"first_bucket_bytes", std::to_string(signature.first_bucket_bytes)},
           {"reduce_op", std::string(name(signature.reduce_op))},
           {"plan", signature.measures_plan ? "measured" : "given"},
           {"accumulate", std::string(name(signature.accumulate))},
           {"deterministic", flag(signature.deterministic)},
           {"reorder_gradients", flag(signature.reorder_gradients)},
           {"allow_unused_parameters", flag(signature.allow_unused_parameters)},
           {"broadcast_buffers", flag(signature.broadcast_buffers)}}};
}

/// The remedy where parameters differ.
inline constexpr const char* same_model = "build the same model on all ranks";

inline std::string extra_parameter(int rank, const ModelSignature& longer, int other_rank, std::size_t count) {
  return format_text("rank {} has {} parameters, rank {} has {}; the first that only rank {} has is {} {}, {}; {}",
                     {rank, longer.parameters.size(), other_rank, count, rank, count,
                      in_quotes(longer.parameters[count].name), kind(longer.parameters[count]), same_model});
}

}  // namespace detail

/// Compares options first, then parameters in order. The sentence names both ranks and both values, and says what to
/// do.
/// @returns nullopt if the models agree
inline std::optional<std::string> first_difference(const ModelSignature& mine, int rank, const ModelSignature& theirs,
                                                   int other_rank) {
  const auto my_options = detail::options_of(mine);
  const auto their_options = detail::options_of(theirs);
  for (std::size_t i = 0; i < my_options.size(); ++i) {
    if (my_options[i].second == their_options[i].second) continue;
    return format_text("rank {}'s DdpOptions::{} is {}, rank {}'s is {}; set it alike on all ranks",
                       {rank, my_options[i].first, my_options[i].second, other_rank, their_options[i].second});
  }
  if (mine.hook != theirs.hook) {
    return format_text(
        "rank {} reduces gradients by {}, rank {} by {}; give all ranks the same hook or ShardedOptimizer",
        {rank, detail::hook_of(mine), other_rank, detail::hook_of(theirs)});
  }
  if (mine.scales_averages != theirs.scales_averages) {
    return format_text(
        "the CUDA driver of rank {} does not load dtrain's kernel that scales gradients, that of rank {} does; run one "
        "driver version on all hosts, or set DdpOptions::reduce_op to sum and divide the loss",
        {mine.scales_averages ? other_rank : rank, mine.scales_averages ? rank : other_rank});
  }
  if (mine.check_values_every != theirs.check_values_every) {
    return format_text("rank {} has DTRAIN_CHECK_VALUES={}, rank {} {} (0: not set); set it alike on all hosts",
                       {rank, mine.check_values_every, other_rank, theirs.check_values_every});
  }
  const std::size_t common = std::min(mine.parameters.size(), theirs.parameters.size());
  for (std::size_t i = 0; i < common; ++i) {
    const ParameterSignature& a = mine.parameters[i];
    const ParameterSignature& b = theirs.parameters[i];
    if (a == b) continue;
    const std::string other_name = a.name == b.name ? "" : in_quotes(b.name) + ", ";
    return format_text(
        "rank {}'s parameter {} {} is {}, rank {}'s is {}{}; {}",
        {rank, i, in_quotes(a.name), detail::kind(a), other_rank, other_name, detail::kind(b), detail::same_model});
  }
  if (mine.parameters.size() > common) {
    return detail::extra_parameter(rank, mine, other_rank, common);
  }
  if (theirs.parameters.size() > common) {
    return detail::extra_parameter(other_rank, theirs, rank, common);
  }
  return std::nullopt;
}

/// Collective, blocking: rank 0 publishes its signature and the other ranks compare. O(1) messages for each rank if all
/// agree. Each instance in a job uses its own `prefix`, the same on all ranks. @param doing for errors and warnings:
/// "wrapping a model" @param notice_after how long a rank waits for others until a warning in the log names them
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks; Error (limit) for a model whose signature is beyond max_signature_bytes.
void agree_blocking(const group::GroupHandle& group, const std::string& prefix, const ModelSignature& mine,
                    Deadline deadline, const std::string& doing,
                    std::chrono::milliseconds notice_after = std::chrono::seconds(10));

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <charconv>
#include <string_view>
#include <system_error>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A number of extents as u8, and each as i64.
inline void fields(Serializer& of, Shape& shape) {
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.extents().begin(), shape.extents().end(), extents.begin());
  auto rank = static_cast<std::uint8_t>(shape.extents().size());
  of.number(rank, 0, Shape::max_rank);
  for (std::size_t i = 0; i < rank; ++i) {
    of.number(extents[i]);
  }
  try {
    shape = Shape(std::span(extents).first(rank));
  } catch (const Error&) {
    of.fail("has an impossible shape");
  }
}

DTRAIN_DEFINED void fields(Serializer& of, ModelSignature& signature) {
  of.constant("dtrain ddp 8\n");
  of.number(signature.bucket_bytes);
  of.number(signature.first_bucket_bytes);
  of.choice(signature.reduce_op, ReduceOp::sum, ReduceOp::product);
  of.flag(signature.deterministic);
  of.flag(signature.reorder_gradients);
  of.flag(signature.allow_unused_parameters);
  of.flag(signature.broadcast_buffers);
  of.choice(signature.accumulate, Accumulate::element, Accumulate::f32);
  of.flag(signature.scales_averages);
  of.text(signature.hook, max_parameter_name_bytes);
  of.flag(signature.measures_plan);
  of.number(signature.check_values_every);
  of.list(signature.parameters, 0, max_signature_bytes, [&of](ParameterSignature& parameter) {
    of.raw_text(parameter.name, max_parameter_name_bytes);
    of.choice(parameter.dtype, first_dtype, last_dtype);
    fields(of, parameter.shape);
    of.choice(parameter.device, DeviceKind::host, DeviceKind::cuda);
  });
}

DTRAIN_DEFINED ModelSignature model_signature(std::span<const Parameter> parameters, const DdpOptions& options,
                                              std::span<const TensorView> buffers, bool scales_averages,
                                              const std::string& hook) {
  ModelSignature signature{options.bucket_bytes,
                           options.first_bucket_bytes,
                           options.reduce_op,
                           {},
                           options.deterministic,
                           options.reorder_gradients,
                           options.allow_unused_parameters,
                           options.broadcast_buffers,
                           options.accumulate,
                           scales_averages,
                           hook.substr(0, max_parameter_name_bytes),
                           options.plan.is_measured()};
  signature.parameters.reserve(parameters.size() + buffers.size());
  for (const Parameter& parameter : parameters) {
    signature.parameters.push_back(
        {parameter.name, parameter.value.shape, parameter.value.dtype, parameter.value.device.kind});
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    signature.parameters.push_back(
        {format_text("(buffer {})", {i}), buffers[i].shape, buffers[i].dtype, buffers[i].device.kind});
  }
  return signature;
}

namespace detail {

/// Digest and length, which suffice for a rank with the same model.
inline std::string summary_of(std::string_view bytes) {
  return format_text("{} {}", {hex(Sha256().update(bytes).digest()), bytes.size()});
}

inline std::string difference_to_rank_0(const group::GroupHandle& group, const backend::StoreRef& store,
                                        const std::string& prefix, std::string_view summary, const ModelSignature& mine,
                                        Deadline deadline) {
  const int rank = group.members().rank_in_job();
  const int rank_0 = group.members().rank_in_job(0);
  const std::string_view digits = summary.substr(summary.find(' ') + 1);
  std::size_t length = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
  const bool is_length = error == std::errc{} && end == digits.data() + digits.size() && length <= max_signature_bytes;
  const std::string bytes =
      rendezvous::join_value_chunks(prefix + "signature", is_length ? length : 0,
                                    [&](const std::string& name) { return store.get_blocking(name, deadline); });
  const std::optional<ModelSignature> theirs =
      bytes.size() <= max_signature_bytes ? try_from_bytes<ModelSignature>(bytes) : std::nullopt;
  if (!theirs) {
    return format_text("rank {} cannot read the model signature of rank {}; do both run the same program?",
                       {rank, rank_0});
  }
  return first_difference(mine, rank, *theirs, rank_0)
      .value_or(format_text("rank {}'s model signature has another digest than rank {}'s; run the same program on both",
                            {rank, rank_0}));
}

/// A barrier of the group's store, in which rank 0 logs which ranks are missing: after notice_after, then after twice
/// the time.
inline void pass_barrier_blocking(const group::GroupHandle& group, const std::string& name, const std::string& doing,
                                  Deadline deadline, std::chrono::milliseconds notice_after) {
  const Deadline::Clock::time_point began = Deadline::Clock::now();
  for (std::chrono::milliseconds next = notice_after;; next *= 2) {
    try {
      const bool logs = group.members().rank == 0;
      return group.barrier_blocking(name, doing, logs ? earlier(deadline, Deadline::at(began + next)) : deadline);
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout) || deadline.passed()) throw;
      const std::string what = error.what();
      log(LogLevel::warning,
          format_text("rank {}: still waits in {}, after {}{}",
                      {group.members().rank_in_job(), doing, duration_text(Deadline::Clock::now() - began),
                       what.substr(std::min(what.find("; "), what.size()))}));
    }
  }
}

}  // namespace detail

DTRAIN_DEFINED void agree_blocking(const group::GroupHandle& group, const std::string& prefix,
                                   const ModelSignature& mine, Deadline deadline, const std::string& doing,
                                   std::chrono::milliseconds notice_after) {
  const backend::StoreRef store = group.store_ref().with_purpose(doing);
  const int rank = group.members().rank;
  const int self = group.members().rank_in_job();
  FailureLatch& latch = *group.failure();
  const std::string bytes = to_bytes(mine);
  if (bytes.size() > max_signature_bytes) {
    throw_error(Errc::limit,
                "the names and shapes of {} parameters take {} bytes to compare between ranks; shorten the names",
                {mine.parameters.size(), bytes.size()});
  }
  const std::string own_summary = detail::summary_of(bytes);
  std::vector<std::pair<std::string, std::string>> entries;  // entries that rank 0 publishes, the summary last
  if (rank == 0) {
    entries = rendezvous::value_chunks(prefix + "signature", bytes);
    entries.emplace_back(prefix + "summary", own_summary);
  }
  const auto name = [](int other) { return "rank " + std::to_string(other); };
  backend::StoreRank here{store, rank, rank + 1, self, deadline, doing, name};
  here.notice_after = notice_after;
  backend::detail::LateRanks late(here, [] { return std::string("rank 0 of the group has not come"); });
  try {
    for (const auto& [key, value] : entries) {
      store.set_blocking(key, value, deadline);
    }
    const std::string summary =
        rank == 0 ? own_summary : backend::detail::get(here, prefix + "summary", deadline, late);
    if (summary != own_summary) {
      latch.report({CauseKind::disagreement, self, group.members().host,
                    detail::difference_to_rank_0(group, store, prefix, summary, mine, deadline)});
      latch.block_until_failed(deadline);
    }
    detail::pass_barrier_blocking(group, prefix + "agreed", doing, deadline, notice_after);
    for (const auto& entry : entries) {
      store.erase_blocking(entry.first, deadline);
    }
  } catch (const Error&) {
    group.throw_cause_or_rethrow();
  }
  latch.throw_if_failed(self);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
