#pragma once
/// @file
/// Value comparison: whether all ranks have the same values of a model, by digests, and the first parameter that
/// differs.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// When a wrapper compares the ranks' values.
struct ValueChecks {
  std::uint64_t every = 0;  ///< steps from one comparison to the next; 0: none
  bool at_end = false;      ///< when the wrapper ends
};

/// From the text of DTRAIN_CHECK_VALUES: null or an empty text compares at the end, N also before every N-th step, and
/// 0 never. Values that are not compared, on a GPU or unequal by design, become a warning in the log if N is given.
/// @throws Error (usage) for another text than a number
/// @param keeps_values_equal whether each step leaves the values of all ranks equal
ValueChecks value_checks(const char* text, std::span<const Parameter> parameters, bool keeps_values_equal);

/// Collective, blocking: compares the values over the store. All ranks send one digest; if two differ, the digests of
/// 64 parts of the model, and so on down to a parameter.
/// @param prefix of keys, used once, the same on all ranks @param when for the sentence: "after 12 steps"
/// @param end_name of the wrapper's compare_values_in_background
/// @throws Error (disagreement) on every rank, with the first parameter whose values differ and the ranks; or with a
/// rank whose wrapper has ended, and which therefore does not come; (unsupported) for values on a GPU; as store_gather
void compare_values_blocking(const group::GroupHandle& group, const std::string& prefix,
                             std::span<const Parameter> parameters, Deadline deadline, const std::string& when,
                             const std::string& end_name);

/// Compares a digest of all values in the background, once every rank has called it: rank 0 warns in the log if two
/// differ. Blocking: no. @throws Error if this rank has left the job @param name of keys, used once
void compare_values_in_background(const group::GroupHandle& group, const std::string& name,
                                  std::span<const Parameter> parameters);

/// Whether all values are in host memory.
bool are_on_host(std::span<const Parameter> parameters) noexcept;

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <system_error>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/kernels/digest.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The most digests in one message.
inline constexpr std::size_t most_parts = 64;

/// Parameters [begin, end) of a model, in parts that differ by one parameter at most.
struct ComparedRange {
  std::size_t begin;
  std::size_t end;
  std::size_t parts;

  std::size_t begin_of(std::size_t part) const noexcept { return begin + part * (end - begin) / parts; }
  bool is_exact() const noexcept { return parts == end - begin; }
};

inline std::uint64_t digest_of_values(std::span<const Parameter> parameters, std::size_t begin, std::size_t end) {
  std::uint64_t hash = kernels::digest_start;
  for (std::size_t i = begin; i < end; ++i) {
    hash = kernels::digest(parameters[i].value.data, parameters[i].value.bytes(), hash);
  }
  return hash;
}

/// The digests of all parts, one behind the other.
inline std::string digests_of_parts(std::span<const Parameter> parameters, const ComparedRange& range) {
  std::string text;
  for (std::size_t part = 0; part < range.parts; ++part) {
    const std::uint64_t digest = digest_of_values(parameters, range.begin_of(part), range.begin_of(part + 1));
    char bytes[sizeof(digest)];
    std::memcpy(bytes, &digest, sizeof(digest));
    text.append(bytes, sizeof(bytes));
  }
  return text;
}

/// "rank 3", "ranks 1 and 3", "ranks 1, 2, 3 and 12 more".
inline std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t most_named = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    text += i == 0 ? "" : is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return ranks.size() > named ? format_text("{} and {} more", {text, ranks.size() - named}) : text;
}

/// "rank 2 has other values than the other ranks" of texts that differ; by the ranks' numbers in the job. The text of
/// most ranks counts as that of the other ranks; of two as frequent ones, that of the lower rank.
inline std::string differing_ranks(const std::vector<int>& job_ranks, const std::vector<std::string>& texts) {
  const auto frequency = [&](const std::string& text) { return std::count(texts.begin(), texts.end(), text); };
  const auto common = std::max_element(texts.begin(), texts.end(), [&](const std::string& a, const std::string& b) {
    return frequency(a) < frequency(b);
  });
  std::vector<int> with, without;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    (texts[rank] == *common ? with : without).push_back(job_ranks[rank]);
  }
  return format_text("{} {} other values than {}",
                     {ranks_text(without), without.size() == 1 ? "has" : "have", ranks_text(with)});
}

inline constexpr const char* how_values_drift =
    "a rank left out a step or an update, or set values that the other ranks did not set, or its update does not "
    "depend on the reduced gradients alone, or its model was freed before the wrapper";

/// Throws if the job has failed, or if the wrapper of a rank that this one waits for has ended: rank 0 of the group
/// waits for all ranks, and each of them for rank 0. @throws JobFailed; Error (disagreement)
inline void require_wrappers(const group::GroupHandle& group, const std::string& end_name, const std::string& when) {
  const rendezvous::Membership& members = group.members();
  group.failure()->throw_if_failed(members.rank_in_job());
  const backend::StoreRef store = group.store_ref();
  const int first = members.rank == 0 ? 1 : 0;
  const auto has_ended = [&](int rank) {
    try {
      return store.has_blocking(format_text("{}/{}", {end_name, rank}), Deadline::after(std::chrono::seconds(1)));
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      return false;  // a store that does not answer in time does not end the wait
    }
  };
  for (int rank = first; rank < (members.rank == 0 ? members.world_size : 1); ++rank) {
    if (has_ended(rank)) {
      throw_error(Errc::disagreement,
                  "{} rank {} compares values, and the DistributedDataParallel of rank {} has ended; every rank makes "
                  "the same number of steps",
                  {when, members.rank_in_job(), members.rank_in_job(rank)});
    }
  }
}

}  // namespace detail

DTRAIN_DEFINED bool are_on_host(std::span<const Parameter> parameters) noexcept {
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const Parameter& parameter) { return parameter.value.device.kind == DeviceKind::host; });
}

DTRAIN_DEFINED ValueChecks value_checks(const char* text, std::span<const Parameter> parameters,
                                        bool keeps_values_equal) {
  const bool is_on_host = are_on_host(parameters);
  const bool may_compare = is_on_host && keeps_values_equal;
  const std::string_view digits = text == nullptr ? std::string_view() : text;
  std::uint64_t steps = 0;
  if (digits.empty()) return {0, may_compare};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), steps);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    throw_error(
        Errc::usage,
        "DTRAIN_CHECK_VALUES={} is not a number of steps; set how many steps lie between two comparisons of the "
        "ranks' values, or 0 for none",
        {in_quotes(digits)});
  }
  if (steps != 0 && !may_compare) {
    log(LogLevel::warning, format_text("DTRAIN_CHECK_VALUES={} does not compare the values of this model: {}",
                                       {digits, is_on_host ? "those of its ranks differ between two averages of a hook"
                                                           : "they are on a GPU"}));
  }
  return may_compare ? ValueChecks{steps, steps != 0} : ValueChecks{};
}

DTRAIN_DEFINED void compare_values_blocking(const group::GroupHandle& group, const std::string& prefix,
                                            std::span<const Parameter> parameters, Deadline deadline,
                                            const std::string& when, const std::string& end_name) {
  if (!are_on_host(parameters)) {
    throw_error(Errc::unsupported, "compare_values() reads values in host memory, and this model's are on a GPU");
  }
  group.start_pending();  // other ranks may wait for this work before they call this
  const auto job_rank = [&](int rank) { return group.members().rank_in_job(rank); };
  backend::StoreRank self{group.store_ref(),
                          group.members().rank,
                          group.members().world_size,
                          job_rank(group.members().rank),
                          deadline,
                          "compare_values(), which every rank calls",
                          [&](int rank) { return format_text("rank {}", {job_rank(rank)}); }};
  self.check = [&] { detail::require_wrappers(group, end_name, when); };
  detail::ComparedRange range{0, parameters.size(), 1};
  for (int round = 0;; ++round) {
    const auto own = [&] { return detail::digests_of_parts(parameters, range); };
    const auto find = [&](const std::vector<std::string>& texts) -> std::string {
      const auto part_of = [](const std::string& text, std::size_t part) {
        return text.substr(part * sizeof(std::uint64_t), sizeof(std::uint64_t));
      };
      for (std::size_t part = 0; part < range.parts; ++part) {
        std::vector<std::string> digests;
        for (const std::string& text : texts) {
          if (text.size() != range.parts * sizeof(std::uint64_t)) {
            throw_error(Errc::protocol, "a rank's digests have {} bytes in place of {}",
                        {text.size(), range.parts * sizeof(std::uint64_t)});
          }
          digests.push_back(part_of(text, part));
        }
        if (std::count(digests.begin(), digests.end(), digests.front()) ==
            static_cast<std::ptrdiff_t>(digests.size())) {
          continue;
        }
        if (!range.is_exact()) return std::to_string(part);
        const std::size_t parameter = range.begin_of(part);
        throw_error(Errc::disagreement, "{} the values of {} differ: {}; {}",
                    {when, describe_parameter(parameter, parameters[parameter].name),
                     detail::differing_ranks(group.members().ranks_in_job(), digests), detail::how_values_drift});
      }
      return {};
    };
    const std::string found = backend::store_gather(self, format_text("{}{}", {prefix, round}), own, find);
    if (found.empty()) return;
    std::size_t part = 0;
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), part);
    if (error != std::errc{} || end != found.data() + found.size() || part >= range.parts) {
      throw_error(Errc::protocol, "rank 0 of the group named a part of the values that does not exist");
    }
    range = {range.begin_of(part), range.begin_of(part + 1), 0};
    range.parts = std::min(detail::most_parts, range.end - range.begin);
  }
}

DTRAIN_DEFINED void compare_values_in_background(const group::GroupHandle& group, const std::string& name,
                                                 std::span<const Parameter> parameters) {
  const std::uint64_t digest = detail::digest_of_values(parameters, 0, parameters.size());
  const std::vector<int> job_ranks = group.members().ranks_in_job();
  group.gather_in_background(name, std::to_string(digest), [job_ranks](const std::vector<std::string>& texts) {
    const auto is_first = [&](const std::string& text) { return text == texts.front(); };
    if (std::all_of(texts.begin(), texts.end(), is_first)) return;
    log(LogLevel::warning,
        format_text("the ranks' values of the model differed when its DistributedDataParallel ended: {}; {}; with "
                    "DTRAIN_CHECK_VALUES=1 the job ends at the first step after which values differ, and with "
                    "DTRAIN_CHECK_VALUES=0 values are not compared",
                    {detail::differing_ranks(job_ranks, texts), detail::how_values_drift}));
  });
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
