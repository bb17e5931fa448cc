#pragma once
/// @file
/// store_gather(), store_broadcast(): collectives of texts over the job's store; all get the result or one rank's
/// error. split_context(): a channel's split by color and key.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// This rank, among the ranks that exchange texts: those of a channel, a group or a node.
struct StoreRank {
  /// A rank of the context's channel. @param doing for the sentence of a timeout: "splitting channel 'group'"
  static StoreRank of(const ChannelContext& context, Deadline deadline, std::string doing);

  StoreRef store;
  int rank;
  int ranks;
  int job_rank;  ///< this rank's number in the job
  Deadline deadline;
  std::string doing;
  std::function<std::string(int)> name_of_rank;  ///< "rank 3"
  std::string late = "did not come by the deadline";
  /// Called five times a second while this rank waits for others; throws if they will not come.
  std::function<void()> check{};
  /// How long this rank waits for others until a warning in the log names them; 0, for ranks that work for long: no
  /// warning.
  std::chrono::milliseconds notice_after = std::chrono::seconds(10);

  /// The store, whose error sentences say what this rank is doing.
  StoreRef named_store() const { return store.with_purpose(doing); }
};

namespace detail {

/// "=TEXT", or an error with its origin: "!d4 2 SENTENCE" is code 4 of dtrain's category on rank 2 of the job. A
/// disagreement that names no rank has -1: it is no error of the rank that has found it.
std::string encode(const Error& error, int job_rank);

/// @throws the error that the rank has sent; Error (protocol) if `sent` is malformed
std::string decode(const std::string& sent);

/// `work()`. Other ranks wait for a result: an exception that is no Error, as for memory that has run out, becomes one.
template <class Work>
auto with_error(const std::string& doing, Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_error(Errc::limit, "{} ended by {}", {doing, error.what()});
  }
}

/// For the sentence of with_error: "splitting channel 'group' on rank 1".
inline std::string doing_on_rank(const StoreRank& self) {
  return format_text("{} on {}", {self.doing, self.name_of_rank(self.rank)});
}

/// `make()` encoded, or its error. @throws JobFailed
std::string encoded_result(const std::string& doing, const MakeText& make, int job_rank);

/// The ranks that one exchange waits for, for the log.
struct LateRanks {
  /// @param says its result names the ranks: "not come so far: rank 1"
  LateRanks(const StoreRank& self, std::function<std::string()> says)
      : ranks_text(std::move(says)), is_logged(self.notice_after.count() > 0), notice(self.notice_after) {}

  std::function<std::string()> ranks_text;
  bool is_logged;
  WaitNotice notice;
  Deadline::Clock::time_point began = Deadline::Clock::now();
};

/// Waits for the text that another rank sets, see StoreRank::check and notice_after.
/// @throws Error (timeout), which names the late ranks; JobFailed; as `check`
std::string get(const StoreRank& self, const std::string& key, Deadline deadline, LateRanks& late);

/// get(), and counts this rank as one of the `readers` of the text.
std::string take(const StoreRank& self, const std::string& key, int readers, Deadline deadline, LateRanks& late);

/// Takes rank 0's result. @throws as get
std::string take_result(const StoreRank& self, const std::string& key);

/// Rank 0's half: takes the text of every other rank. @throws Error (timeout), which names all ranks that did not come
void take_texts(const StoreRank& self, const std::string& name, std::vector<std::string>& texts);

}  // namespace detail

/// Collective, blocking: rank 0 runs `make()`; every rank gets its text or its Error. No key stays in the store.
/// @param key used once
/// @throws Error: that of `make` on every rank, with its code and sentence (job_failed for a library's code; limit, and
/// a sentence that names the rank, for an exception that is no Error); (timeout) at the deadline on rank 0, and later
/// on other ranks, because rank 0's Error explains more; JobFailed
std::string store_broadcast(const StoreRank& self, const std::string& key, const MakeText& make);

/// Collective, blocking: rank 0 combines a text of each rank; every rank gets the result, or the Error of the rank that
/// failed. No key stays in the store.
/// @param name prefix of the keys, used once
/// @param own `own()` is this rank's text
/// @param combine `combine(texts)` runs on rank 0, with the texts in rank order
/// @throws as store_broadcast, also for errors of `own` on any rank; Error (timeout), which names the missing ranks
std::string store_gather(const StoreRank& self, const std::string& name, const MakeText& own,
                         const CombineTexts& combine);

/// Collective, blocking: the values of all ranks, in rank order, on every rank. See store_gather.
/// @param own `own()` is this rank's value, which has fields() for a Serializer
/// @param what subject of the sentence about malformed bytes: "a rank's address"
template <class Own>
auto store_all_gather(const StoreRank& self, const std::string& name, Own own, std::string_view what) {
  using Value = decltype(own());
  const auto combine = [&](const std::vector<std::string>& texts) {
    Serializer all;
    for (const std::string& text : texts) {
      auto value = from_bytes<Value>(text, what);
      fields(all, value);
    }
    return std::string(all.characters());
  };
  const std::string all = store_gather(
      self, name, [&] { return to_bytes(own()); }, combine);
  Serializer reader(all);
  std::vector<Value> values(static_cast<std::size_t>(self.ranks));
  for (Value& value : values) {
    fields(reader, value);
  }
  reader.require_finished(what);
  return values;
}

/// A rank's arguments to split.
struct ColorAndKey {
  int color = 0;
  int key = 0;
};

inline void fields(Serializer& of, ColorAndKey& choice) {
  of.number(choice.color);
  of.number(choice.key);
}

/// The ranks with the color of `rank`, by key, then by rank.
std::vector<int> ranks_of_color(const std::vector<ColorAndKey>& choices, int rank);

/// Collective, blocking. The context of this rank's channel after the `number`-th split of `context`'s channel.
/// @throws Error (invalid_argument) for a negative color, before this rank publishes anything; (timeout), JobFailed
ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                             Deadline deadline);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED StoreRank StoreRank::of(const ChannelContext& context, Deadline deadline, std::string doing) {
  const auto name = [members = context.members](int other) {
    return "rank " + std::to_string(members.rank_in_job(other));
  };
  StoreRank self{context.store,
                 context.members.rank,
                 context.members.world_size,
                 context.reporting_rank(),
                 deadline,
                 std::move(doing),
                 name};
  self.notice_after = context.notice_after;
  return self;
}

namespace detail {

DTRAIN_DEFINED std::string encode(const Error& error, int job_rank) {
  const bool posix = error.code().category() == std::generic_category();
  const bool own = error.code().category() == dtrain_category();
  const int code = posix || own ? error.code().value() : static_cast<int>(Errc::job_failed);  // a library's error
  const int origin = error.code() == make_error_code(Errc::disagreement) ? -1 : job_rank;
  return format_text("{}{} {} {}", {posix ? "!p" : "!d", code, error.rank().value_or(origin), sanitize(error.what())});
}

DTRAIN_DEFINED std::string decode(const std::string& sent) {
  if (sent.starts_with('=')) {
    return sent.substr(1);
  }
  const bool posix = sent.starts_with("!p");
  char* end = nullptr;
  const long code = posix || sent.starts_with("!d") ? std::strtol(sent.c_str() + 2, &end, 10) : 0;
  if (code <= 0 || code > 4096) {
    throw_error(Errc::protocol, "another rank sent {}; do all ranks run the same program?", {in_quotes(sent)});
  }
  const auto rank = static_cast<int>(std::strtol(end, &end, 10));
  const std::error_code as = posix ? std::error_code(static_cast<int>(code), std::generic_category())
                                   : make_error_code(static_cast<Errc>(code));
  Error error(as, end + (*end == ' ' ? 1 : 0));
  if (rank >= 0) error.with_rank(rank);
  throw error;
}

DTRAIN_DEFINED std::string encoded_result(const std::string& doing, const MakeText& make, int job_rank) {
  try {
    return "=" + with_error(doing, make);
  } catch (const JobFailed&) {
    throw;
  } catch (const Error& error) {
    return encode(error, job_rank);
  }
}

/// Whether the store answers within a second: then a wait that has taken too long was for another rank.
inline bool is_store_there(const StoreRank& self, const std::string& key) {
  try {
    static_cast<void>(self.named_store().has_blocking(key, Deadline::after(std::chrono::seconds(1))));
    return true;
  } catch (const Error& error) {
    if (error.code() != make_error_code(Errc::timeout)) throw;
    return false;
  }
}

DTRAIN_DEFINED std::string get(const StoreRank& self, const std::string& key, Deadline deadline, LateRanks& late) {
  const StoreRef store = self.named_store();
  for (;;) {
    Deadline until = late.is_logged ? earlier(deadline, Deadline::after(self.notice_after)) : deadline;
    if (self.check) {
      until = earlier(until, Deadline::after(std::chrono::milliseconds(200)));
    }
    try {
      return store.get_blocking(key, until);
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
    }
    if (deadline.passed()) {
      throw_error(Errc::timeout, "{}: the deadline passed{}",
                  {self.doing, is_store_there(self, key) ? "; " + late.ranks_text()
                                                         : std::string(" and the store does not answer")});
    }
    if (late.is_logged) {
      late.notice.update(self.job_rank, Deadline::Clock::now() - late.began, [&](std::chrono::milliseconds after) {
        return format_text("{}, after {}; {}", {self.doing, duration_text(after), late.ranks_text()});
      });
    }
    try {
      if (self.check) self.check();
    } catch (const Error&) {
      // A peer that has got its result may have gone since.
      if (!store.has_blocking(key, Deadline::after(std::chrono::seconds(1)))) throw;
    }
  }
}

DTRAIN_DEFINED std::string take(const StoreRank& self, const std::string& key, int readers, Deadline deadline,
                                LateRanks& late) {
  std::string text = get(self, key, deadline, late);
  const Deadline soon = later(deadline, Deadline::after(std::chrono::seconds(1)));
  try {
    if (readers > 1) return self.named_store().take_blocking(key, readers, soon);
    self.named_store().erase_blocking(key, soon);
  } catch (const JobFailed&) {
    if (!text.starts_with('!')) throw;  // the text is the error that ended the job; all ranks throw it
  }
  return text;
}

DTRAIN_DEFINED std::string take_result(const StoreRank& self, const std::string& key) {
  LateRanks late(self, [&] {
    return format_text("no result so far: {}{} has not come",
                       {self.name_of_rank(0), self.ranks > 2 ? ", or a rank that it waits for," : ""});
  });
  return take(self, key, self.ranks - 1, with_grace(self.deadline), late);
}

DTRAIN_DEFINED void take_texts(const StoreRank& self, const std::string& name, std::vector<std::string>& texts) {
  const auto key_of = [&](int rank) { return format_text("{}/{}", {name, rank}); };
  int rank = 1;  // that is taken
  const auto missing = [&] {
    std::string names = self.name_of_rank(rank);
    for (int later = rank + 1; later < self.ranks; ++later) {
      try {
        const bool came = self.named_store().has_blocking(key_of(later), Deadline::after(std::chrono::seconds(1)));
        names += came ? "" : ", " + self.name_of_rank(later);
      } catch (const Error& error) {
        if (error.code() != make_error_code(Errc::timeout)) throw;
        return names + " and maybe others";  // a store that does not answer does not end the wait
      }
    }
    return names;
  };
  LateRanks late(self, [&] { return format_text("not come so far: {}", {missing()}); });
  for (; rank < self.ranks; ++rank) {
    try {
      texts.push_back(take(self, key_of(rank), 1, self.deadline, late));
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      if (!is_store_there(self, key_of(rank))) throw;
      throw_error(Errc::timeout, "{}: {} {}", {self.doing, missing(), self.late});
    }
    texts.back() = decode(texts.back());  // an error is thrown before the last rank has come
  }
}

}  // namespace detail

DTRAIN_DEFINED std::string store_broadcast(const StoreRank& self, const std::string& key, const MakeText& make) {
  if (self.rank != 0) {
    return detail::decode(detail::take_result(self, key));
  }
  const auto publish = [&](const std::string& text) {
    if (self.ranks > 1) {  // `make` may have passed the deadline
      self.named_store().set_blocking(key, text, later(self.deadline, Deadline::after(std::chrono::seconds(10))));
    }
  };
  std::string text;
  try {
    text = detail::with_error(detail::doing_on_rank(self), make);
  } catch (const JobFailed&) {
    throw;
  } catch (const Error& error) {
    publish(detail::encode(error, self.job_rank));
    throw;
  }
  publish("=" + text);
  return text;
}

DTRAIN_DEFINED std::string store_gather(const StoreRank& self, const std::string& name, const MakeText& own,
                                        const CombineTexts& combine) {
  if (self.rank != 0) {
    const std::string result = detail::encoded_result(detail::doing_on_rank(self), own, self.job_rank);
    self.named_store().set_blocking(format_text("{}/{}", {name, self.rank}), result, self.deadline);
  }
  const auto gather = [&]() -> std::string {
    std::vector<std::string> texts{own()};
    detail::take_texts(self, name, texts);
    return combine(texts);
  };
  return store_broadcast(self, name + "/all", gather);
}

DTRAIN_DEFINED std::vector<int> ranks_of_color(const std::vector<ColorAndKey>& choices, int rank) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < choices.size(); ++other) {
    if (choices[other].color == choices[static_cast<std::size_t>(rank)].color) {
      ranks.push_back(static_cast<int>(other));
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

DTRAIN_DEFINED ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                                            Deadline deadline) {
  check_color(color);
  const std::string split = format_text("{}/split-{}", {context.name, number});
  const StoreRank self = StoreRank::of(context, deadline, format_text("splitting channel '{}'", {context.name}));
  const auto own = [=] { return ColorAndKey{color, key}; };
  const std::vector<ColorAndKey> choices = store_all_gather(self, split, own, "a rank's color and key");
  ChannelContext made = context;
  made.members = context.members.in_part_of(ranks_of_color(choices, context.members.rank));
  made.name = format_text("{}-color-{}", {split, color});
  if (made.activity) made.activity = made.activity->split(made.name);
  return made;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
