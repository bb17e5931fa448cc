#pragma once
/// @file
/// Value comparison: whether a wrapped model's values, by digests, and noted settings are equal on all ranks.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collective, blocking: compares the values over the store. All ranks send one digest, with the settings that they
/// have noted (group::NotedSettings); if two digests differ, the digests of 64 parts of the model, and so on
/// down to a parameter.
/// @param purpose of GroupHandle::gather, each wrapper's own @param when for the sentence: "after 12 steps"
/// @param end_name of the wrapper's compare_values_in_background
/// @throws Error (disagreement) on every rank, with the first parameter whose values differ and the ranks; where most
/// ranks have equal values, its rank() is this rank, if its values are others, or else the first such rank; with a
/// setting that differs; or with a rank whose wrapper has ended, and which therefore does not come; (unsupported) for
/// values on a GPU; as GroupHandle::gather
void compare_values_blocking(const group::GroupHandle& group, const std::string& purpose,
                             std::span<const Parameter> parameters, Deadline deadline, const std::string& when,
                             const std::string& end_name);

/// Collective, blocking: compares the noted settings alone, over the store. @param purpose of GroupHandle::gather
/// @throws Error (disagreement) on every rank, with a setting that differs; as GroupHandle::gather
void compare_settings_blocking(const group::GroupHandle& group, const std::string& purpose, const std::string& when);

/// Compares a digest of all values, and noted settings, in the background, once every rank has called it: rank 0 warns
/// in the log if two differ. Blocking: no. @throws Error if this rank has left the job @param name of keys, used once
/// @param compared_settings what compare_settings_in_background has returned: the same are not compared again
void compare_values_in_background(const group::GroupHandle& group, const std::string& name, std::uint64_t digest,
                                  const std::string& compared_settings = {});

/// Compares noted settings in the background, likewise. @returns those of this rank
std::string compare_settings_in_background(const group::GroupHandle& group, const std::string& name);

/// Digest of all values, in host memory. Blocking: at the speed of memory.
std::uint64_t digest_of_values(std::span<const Parameter> parameters);

/// Warns in the log that none of the model's values has changed in `steps` steps, if these are at least
/// least_unchanged_steps: fewer may be those of a loss scaler that finds its scale, or of a rate that begins at 0.
void warn_of_unchanged_values(std::uint64_t steps);
inline constexpr std::uint64_t least_unchanged_steps = 10;

/// Whether all values are in host memory.
bool are_on_host(std::span<const Parameter> parameters) noexcept;

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/kernels/digest.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/server_state/value_digests.hpp"

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

/// The digests of all parts, one after the other.
inline std::string digests_of_parts(std::span<const Parameter> parameters, const ComparedRange& range) {
  std::string text;
  for (std::size_t part = 0; part < range.parts; ++part) {
    const std::size_t begin = range.begin_of(part);
    const std::uint64_t digest = digest_of_values(parameters.subspan(begin, range.begin_of(part + 1) - begin));
    char bytes[sizeof(digest)];
    std::memcpy(bytes, &digest, sizeof(digest));
    text.append(bytes, sizeof(bytes));
  }
  return text;
}

/// The first part of a model whose values differ, with the ranks if that part is one parameter.
struct FoundDifference {
  std::uint64_t part = 0;
  int first = -1;          ///< rendezvous::DifferingRanks::rank; -1: there is none
  std::string common{};    ///< the digest of most ranks
  std::string sentence{};  ///< empty: the part has several parameters
};

inline void fields(Serializer& of, FoundDifference& found) {
  of.number(found.part);
  of.number(found.first);
  of.raw_text(found.common, sizeof(std::uint64_t));
  of.text(found.sentence, rendezvous::max_sentence_bytes);
}

/// "seed=1 on ranks 0, 2 and 3, seed=2 on rank 1": the first noted setting that differs. Empty if none does, or if the
/// ranks that have noted any have not noted as many. @param texts of all ranks, lines of words
inline std::string differing_setting(const std::vector<int>& job_ranks, const std::vector<std::string>& texts) {
  constexpr std::size_t most_named = 4;
  std::vector<std::pair<int, std::vector<std::string_view>>> settings;  // the words of each rank that has any
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::vector<std::string_view> words;
    for (std::string_view lines = texts[rank]; !lines.empty();) {
      for (std::string_view line = next_entry(lines, '\n'); !line.empty();)
        words.push_back(next_entry(line, ' '));
    }
    if (!words.empty()) settings.emplace_back(job_ranks[rank], std::move(words));
    if (settings.size() > 1 && settings.back().second.size() != settings.front().second.size()) return {};
  }
  for (std::size_t word = 0; !settings.empty() && word < settings.front().second.size(); ++word) {
    std::vector<std::pair<std::string_view, std::vector<int>>> ranks_of;  // the ranks that have each value
    for (const auto& [rank, words] : settings) {
      const auto has_value = [value = words[word]](const auto& other) { return other.first == value; };
      auto found = std::find_if(ranks_of.begin(), ranks_of.end(), has_value);
      if (found == ranks_of.end()) found = ranks_of.insert(found, {words[word], {}});
      found->second.push_back(rank);
    }
    if (ranks_of.size() == 1) continue;
    std::string text;
    for (std::size_t i = 0; i < std::min(ranks_of.size(), most_named); ++i)
      text += format_text(
          "{}{} on {}", {i == 0 ? "" : ", ", sanitize(ranks_of[i].first), rendezvous::ranks_text(ranks_of[i].second)});
    return text + (ranks_of.size() > most_named ? " and so on" : "");
  }
  return {};
}

inline std::string sampler_difference(const std::string& setting) {
  return format_text(
      "the DistributedSamplers of the ranks differ: {}; give all ranks the same settings, or they train "
      "on the same samples and leave others out",
      {setting});
}

inline void warn_of_settings(const std::vector<int>& job_ranks, const std::vector<std::string>& texts) {
  if (const std::string setting = differing_setting(job_ranks, texts); !setting.empty()) {
    log(LogLevel::warning, sampler_difference(setting));
  }
}

/// Throws if the job has failed, or if the wrapper of a rank that this one waits for has ended: rank 0 of the group
/// waits for all ranks, and each of them for rank 0. @throws JobFailed; Error (disagreement)
inline void require_wrappers(const group::GroupHandle& group, const std::string& end_name, const std::string& when) {
  const rendezvous::Membership& members = group.members();
  group.failure()->throw_if_failed(members.rank_in_job());
  const backend::StoreRef store = group.store_ref().with_purpose("comparing the values of the ranks");
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

DTRAIN_DEFINED void compare_values_blocking(const group::GroupHandle& group, const std::string& purpose,
                                            std::span<const Parameter> parameters, Deadline deadline,
                                            const std::string& when, const std::string& end_name) {
  if (!are_on_host(parameters)) {
    throw_error(Errc::unsupported, "compare_values() reads values in host memory, and this model's are on a GPU");
  }
  const auto job_rank = [&](int rank) { return group.members().rank_in_job(rank); };
  const std::string doing = "compare_values(), which every rank calls";
  group::StoreWait wait{deadline};
  wait.check = [&] { detail::require_wrappers(group, end_name, when); };
  detail::ComparedRange range{0, parameters.size(), 1};
  for (int round = 0;; ++round) {
    const bool is_first = round == 0;  // whose texts also have the settings
    const auto own = [&] {
      return detail::digests_of_parts(parameters, range) + (is_first ? group.noted_settings().lines() : std::string());
    };
    const auto find = [&](const std::vector<std::string>& texts) -> std::string {
      const std::size_t bytes = range.parts * sizeof(std::uint64_t);
      std::vector<std::string> settings;
      for (const std::string& text : texts) {
        if (is_first ? text.size() < bytes : text.size() != bytes) {
          throw_error(Errc::protocol, "a rank's digests have {} bytes in place of {}", {text.size(), bytes});
        }
        settings.push_back(text.substr(bytes));
      }
      const std::vector<int> job_ranks = group.members().ranks_in_job();
      if (const std::string setting = detail::differing_setting(job_ranks, settings); !setting.empty()) {
        throw_error(Errc::disagreement, "{} {}", {when, detail::sampler_difference(setting)});
      }
      for (std::size_t part = 0; part < range.parts; ++part) {
        std::vector<std::string> digests;
        for (const std::string& text : texts)
          digests.push_back(text.substr(part * sizeof(std::uint64_t), sizeof(std::uint64_t)));
        if (std::count(digests.begin(), digests.end(), digests.front()) ==
            static_cast<std::ptrdiff_t>(digests.size())) {
          continue;
        }
        detail::FoundDifference found{part, -1, {}, {}};
        if (range.is_exact()) {
          const std::size_t parameter = range.begin_of(part);
          rendezvous::DifferingRanks differing = rendezvous::differing_ranks(job_ranks, digests);
          found.first = differing.rank.value_or(-1);
          found.common = std::move(differing.common);
          found.sentence = format_text("{} the values of {} differ: {}; {}",
                                       {when, describe_parameter(parameter, parameters[parameter].name), differing.text,
                                        rendezvous::how_values_drift});
        }
        return to_bytes(found);
      }
      return {};
    };
    const std::string found_text = group.gather(purpose, doing, own, find, wait);
    if (found_text.empty()) return;
    const auto found = from_bytes<detail::FoundDifference>(found_text, "the difference that rank 0 of the group found");
    if (found.part >= range.parts) {
      throw_error(Errc::protocol, "rank 0 of the group named a part of the values that does not exist");
    }
    if (!found.sentence.empty()) {
      const std::string mine =
          detail::digests_of_parts(parameters, range).substr(found.part * sizeof(std::uint64_t), sizeof(std::uint64_t));
      Error error(Errc::disagreement, found.sentence);
      if (found.first >= 0) error.with_rank(mine == found.common ? found.first : job_rank(group.members().rank));
      try {  // each rank knows the result before the first one throws, and the job fails
        group.barrier_blocking(format_text("dtrain/{}/told", {purpose}), doing,
                               earlier(deadline, Deadline::after(std::chrono::seconds(10))));
      } catch (const Error&) {  // a rank was lost meanwhile
      }
      throw error;
    }
    const auto part = static_cast<std::size_t>(found.part);
    range = {range.begin_of(part), range.begin_of(part + 1), 0};
    range.parts = std::min(detail::most_parts, range.end - range.begin);
  }
}

DTRAIN_DEFINED void compare_settings_blocking(const group::GroupHandle& group, const std::string& purpose,
                                              const std::string& when) {
  const auto find = [&](const std::vector<std::string>& texts) -> std::string {
    const std::string setting = detail::differing_setting(group.members().ranks_in_job(), texts);
    if (!setting.empty()) throw_error(Errc::disagreement, "{} {}", {when, detail::sampler_difference(setting)});
    return {};
  };
  static_cast<void>(group.gather(
      purpose, "comparing the settings of the DistributedSamplers before the first step, which every rank makes",
      [&] { return group.noted_settings().lines(); }, find));
}

DTRAIN_DEFINED std::uint64_t digest_of_values(std::span<const Parameter> parameters) {
  std::uint64_t hash = kernels::digest_start;
  for (const Parameter& parameter : parameters) {
    hash = kernels::digest(parameter.value.data, parameter.value.bytes(), hash);
  }
  return hash;
}

DTRAIN_DEFINED void compare_values_in_background(const group::GroupHandle& group, const std::string& name,
                                                 std::uint64_t digest, const std::string& compared_settings) {
  const std::vector<int> job_ranks = group.members().ranks_in_job();
  std::string own_settings = group.noted_settings().lines();
  if (own_settings == compared_settings) own_settings.clear();
  const std::string own = format_text("{}\n{}", {digest, own_settings});
  group.gather_in_background(name, own, [job_ranks](const std::vector<std::string>& texts) {
    std::vector<std::string> digests, settings;
    for (std::string_view text : texts) {
      digests.emplace_back(next_entry(text, '\n'));
      settings.emplace_back(text);
    }
    detail::warn_of_settings(job_ranks, settings);
    const auto is_first = [&](const std::string& text) { return text == digests.front(); };
    if (std::all_of(digests.begin(), digests.end(), is_first)) return;
    log(LogLevel::warning,
        format_text("the ranks' values of the model differed when its DistributedDataParallel ended: {}; {}; {}",
                    {rendezvous::differing_ranks(job_ranks, digests).text, rendezvous::how_values_drift,
                     rendezvous::how_values_are_compared}));
  });
}

DTRAIN_DEFINED std::string compare_settings_in_background(const group::GroupHandle& group, const std::string& name) {
  std::string own = group.noted_settings().lines();
  group.gather_in_background(name, own, [job_ranks = group.members().ranks_in_job()](const auto& texts) {
    detail::warn_of_settings(job_ranks, texts);
  });
  return own;
}

DTRAIN_DEFINED void warn_of_unchanged_values(std::uint64_t steps) {
  if (steps < least_unchanged_steps) return;
  log(LogLevel::warning,
      format_text(
          "no value of the model has changed in {} steps: call the optimizer's step after each of them, let it "
          "update the memory that parameters() shows, with a rate that is not 0, and call ready(i) when gradient i "
          "is written (DdpOptions::check_ready = true finds where not); where nothing is to be trained, "
          "DTRAIN_CHECK_VALUES=0 switches this warning off",
          {steps}));
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
