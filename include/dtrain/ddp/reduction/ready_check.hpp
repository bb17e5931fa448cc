#pragma once
/// @file
/// ReadyCheck of a BucketReduction: detects, by digests, gradients written after their ready(). LateWrites: whether
/// they are unchecked, logged or rejected.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/debug_program.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Answer of ReadyCheck to gradients that are written after their ready().
enum class LateWrites {
  unchecked,
  /// Bound gradients, which are reduced where they lie: an error. Others: a warning in the log, once, because ready()
  /// has copied them, and a library may use their memory again. Each step reads a 64th of a gradient.
  logged,
  refused,  ///< an error; each step reads all of a gradient
};

/// How the gradients of a model in host memory are checked.
LateWrites checked_late_writes(const DdpOptions& options, bool is_debug = is_debug_program());

/// Digest of the part of a gradient that LateWrites::logged reads in a step: one 64th, of a gradient of at most 4 KiB
/// all. 64 steps one after the other read everything.
std::uint64_t digest_of_part(const std::byte* content, std::size_t bytes, std::uint64_t step) noexcept;

/// Takes a digest of each gradient in ready(i), and compares it as long as nobody but the program may write there:
/// - A gradient that is not bound: in finish(), before the reduced gradient is copied there.
/// - A bound gradient, which is reduced where it lies: before the collective of its bucket begins. Its reduced value is
///   taken when the collective has ended, and compared in finish(). A write of the program between these two times,
///   when other ranks may write there too, is not detected.
/// A gradient in other memory than its own is copied by ready(i), and not compared.
/// Passes under no_sync(Adds::model) leave gradients in their memory, which therefore must not be cleared before the
/// next pass: a gradient of zeros is detected when that begins.
/// Digests of reduced gradients count as communication in the step's records.
/// Steady state: allocates nothing. Threads: `take` concurrently, for different parameters; `before_collective` and
/// `after_collective` one at a time; everything else between steps. Lifetime: the table outlives it; lists of
/// parameters outlive the step. A stream needs room for two work items more in each bucket.
class ReadyCheck {
 public:
  ReadyCheck(const GradientTable& gradients, LateWrites late_writes)
      : gradients_(&gradients), late_writes_(late_writes), known_(is_on() ? gradients.size() : 0) {}

  bool is_on() const noexcept { return late_writes_ != LateWrites::unchecked; }

  /// Begins a step, or a pass under no_sync(): nothing is taken. A gradient that a pass under no_sync() has left, and
  /// that is cleared now, becomes a warning in the log, once.
  void begin() noexcept {
    if (is_on()) begin_checked();
  }

  /// In ready(i). @param content of the gradient, in its own memory or on the way there
  void take(std::size_t parameter, const std::byte* content) noexcept;

  /// Before a bucket's collective is enqueued: enqueues compare_bound(). @param at_once does not wait for the stream
  template <class Stream>
  void before_collective(const std::vector<std::size_t>& parameters, [[maybe_unused]] Stream stream, bool at_once) {
    if constexpr (RunsHostWork<Stream>) {
      if (!at_once) return stream.enqueue([this, &parameters]() noexcept { compare_bound(parameters); });
    }
    compare_bound(parameters);
  }
  /// When the bucket's collective is enqueued, whose result is for the model: enqueues take_reduced().
  template <class Stream>
  void after_collective([[maybe_unused]] const std::vector<std::size_t>& parameters, [[maybe_unused]] Stream stream) {
    if constexpr (RunsHostWork<Stream>) {
      stream.enqueue([this, &parameters]() noexcept { take_reduced(parameters); });
    }
  }

  /// Before reduced gradients are copied to the model. @throws Error (invalid_argument) that names a gradient which has
  /// changed since take(): one that is not bound (LateWrites::logged: a warning), or that compare_bound() has noted
  void require_unchanged() {
    if (is_on()) require_unchanged(false);
  }
  /// The same for all gradients, of a pass under no_sync(Adds::wrapper), which has added up all of them.
  void require_all_unchanged() {
    if (is_on()) require_unchanged(true);
  }
  /// When all buckets are reduced. @throws Error (invalid_argument) that names a bound gradient which compare_bound()
  /// has noted, or which has changed since take_reduced()
  void require_bound_unchanged() const {
    if (is_on()) require_bound();
  }

  /// A pass under no_sync(Adds::model) has left the gradient in its memory.
  void hold(std::size_t parameter) noexcept;
  /// No gradient is held any longer: a step has reduced what passes have left, or it is discarded.
  void release() noexcept;

 private:
  struct Known {
    std::uint64_t taken_in = 0;    ///< the step of `taken`; 0: none
    std::uint64_t reduced_in = 0;  ///< the step of `reduced`; 0: none
    std::uint64_t taken = 0;
    std::uint64_t reduced = 0;
    bool is_held = false;  ///< whether a pass under no_sync() has left a gradient that is not zeros
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  /// Notes bound gradients that have changed since take(). @param parameters of a bucket
  void compare_bound(const std::vector<std::size_t>& parameters) noexcept;
  /// Takes the digests of reduced bound gradients.
  void take_reduced(const std::vector<std::size_t>& parameters) noexcept;
  void begin_checked() noexcept;
  /// Digest of a gradient's content, or of the part of it that this step reads.
  std::uint64_t digest(const std::byte* content, std::size_t bytes) const noexcept;
  void require_unchanged(bool is_copied);
  void require_bound() const;
  bool is_taken(const Known& known, std::uint64_t Known::*step) const noexcept { return known.*step == step_; }
  /// @param is_copied whether the step has taken a copy, so that the write may be harmless
  [[noreturn]] void refuse(std::size_t parameter, bool is_copied) const;
  void refuse_changed() const;  ///< what compare_bound() has noted
  void warn_of_late_write(std::size_t parameter) noexcept;

  const GradientTable* gradients_;
  LateWrites late_writes_;
  bool has_warned_of_late_write_ = false;
  bool has_warned_of_clearing_ = false;
  std::uint64_t step_ = 0;  ///< steps and passes begun
  std::vector<Known> known_;
  std::atomic<std::size_t> changed_{none};  ///< noted by compare_bound in this step
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/digest.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED LateWrites checked_late_writes(const DdpOptions& options, bool is_debug) {
  if (options.check_ready) return *options.check_ready ? LateWrites::refused : LateWrites::unchecked;
  return is_debug ? LateWrites::logged : LateWrites::unchecked;
}

DTRAIN_DEFINED std::uint64_t digest_of_part(const std::byte* content, std::size_t bytes, std::uint64_t step) noexcept {
  constexpr std::size_t whole = 4096;
  constexpr std::size_t parts = 64;
  if (bytes <= whole) return kernels::digest(content, bytes);
  const std::size_t part = (bytes + parts - 1) / parts;
  const std::size_t begin = step % parts * part;  // less than `bytes`, which are more than parts * (parts - 1)
  return kernels::digest(content + begin, std::min(part, bytes - begin));
}

DTRAIN_DEFINED std::uint64_t ReadyCheck::digest(const std::byte* content, std::size_t bytes) const noexcept {
  return late_writes_ == LateWrites::refused ? kernels::digest(content, bytes) : digest_of_part(content, bytes, step_);
}

DTRAIN_DEFINED void ReadyCheck::take(std::size_t parameter, const std::byte* content) noexcept {
  Known& known = known_[parameter];
  known.taken = digest(content, (*gradients_)[parameter].bytes);
  known.taken_in = step_;
}

DTRAIN_DEFINED void ReadyCheck::compare_bound(const std::vector<std::size_t>& parameters) noexcept {
  for (const std::size_t parameter : parameters) {
    const GradientSlot& slot = (*gradients_)[parameter];
    const Known& known = known_[parameter];
    if (slot.is_bound() && is_taken(known, &Known::taken_in) && digest(slot.place, slot.bytes) != known.taken) {
      std::size_t expected = none;
      changed_.compare_exchange_strong(expected, parameter, std::memory_order_relaxed);
    }
  }
}

DTRAIN_DEFINED void ReadyCheck::take_reduced(const std::vector<std::size_t>& parameters) noexcept {
  for (const std::size_t parameter : parameters) {
    const GradientSlot& slot = (*gradients_)[parameter];
    if (!slot.is_bound()) continue;
    known_[parameter].reduced = digest(slot.place, slot.bytes);
    known_[parameter].reduced_in = step_;
  }
}

DTRAIN_DEFINED void ReadyCheck::refuse_changed() const {
  if (const std::size_t changed = changed_.load(std::memory_order_relaxed); changed != none) refuse(changed, false);
}

DTRAIN_DEFINED void ReadyCheck::require_unchanged(bool is_copied) {
  refuse_changed();
  for (std::size_t parameter = 0; parameter < known_.size() && !has_warned_of_late_write_; ++parameter) {
    const GradientSlot& slot = (*gradients_)[parameter];
    if (is_taken(known_[parameter], &Known::taken_in) && (is_copied || !slot.is_bound()) &&
        digest(slot.own, slot.bytes) != known_[parameter].taken) {
      if (late_writes_ == LateWrites::refused) refuse(parameter, true);
      warn_of_late_write(parameter);
    }
  }
}

DTRAIN_DEFINED void ReadyCheck::require_bound() const {
  refuse_changed();
  for (std::size_t parameter = 0; parameter < known_.size(); ++parameter) {
    const GradientSlot& slot = (*gradients_)[parameter];
    if (is_taken(known_[parameter], &Known::reduced_in) &&
        digest(slot.place, slot.bytes) != known_[parameter].reduced) {
      refuse(parameter, false);
    }
  }
}

namespace detail {

inline std::string late_write(const GradientTable& gradients, std::size_t parameter) {
  return format_text("the gradient of {} changed after ready({}): the step has not reduced what is there now; ",
                     {gradients.names().describe(parameter), parameter});
}
inline constexpr const char* how_to_announce =
    "call ready(i) once gradient i is computed, and leave its memory alone until the step is finished";

/// Whether all bytes are 0. At the speed of memcmp(), which compares each byte with the one before it.
inline bool is_zero(const std::byte* bytes, std::size_t count) noexcept {
  return count == 0 || (*bytes == std::byte{0} && std::memcmp(bytes, bytes + 1, count - 1) == 0);
}

/// Whether `least` bytes are not 0.
inline bool has_nonzero_bytes(const std::byte* bytes, std::size_t count, std::size_t least) noexcept {
  if (is_zero(bytes, count)) return false;
  for (std::size_t i = 0; i < count && least > 0; ++i) {
    least -= bytes[i] == std::byte{0} ? 0 : 1;
  }
  return least == 0;
}

}  // namespace detail

DTRAIN_DEFINED void ReadyCheck::hold(std::size_t parameter) noexcept {
  constexpr std::size_t least = 64;  // the sum of two passes may be 0 in a few elements
  const GradientSlot& slot = (*gradients_)[parameter];
  if (is_on()) known_[parameter].is_held = detail::has_nonzero_bytes(slot.own, slot.bytes, least);
}

DTRAIN_DEFINED void ReadyCheck::release() noexcept {
  for (Known& known : known_) {
    known.is_held = false;
  }
}

DTRAIN_DEFINED void ReadyCheck::begin_checked() noexcept {
  ++step_;
  changed_.store(none, std::memory_order_relaxed);
  if (has_warned_of_clearing_) return;
  const auto is_cleared = [&](const Known& known) {
    const GradientSlot& slot = (*gradients_)[static_cast<std::size_t>(&known - known_.data())];
    return known.is_held && detail::is_zero(slot.own, slot.bytes);
  };
  const auto cleared = std::find_if(known_.begin(), known_.end(), is_cleared);
  if (cleared == known_.end()) return;
  has_warned_of_clearing_ = true;
  try {
    log(LogLevel::warning,
        format_text("the gradient of {} was cleared after a pass under no_sync(), so that this pass is lost; if that "
                    "was not meant, clear gradients before the first of such passes only, or, for a library that "
                    "clears or overwrites them in each pass, use no_sync(dtrain::Adds::wrapper)",
                    {gradients_->names().describe(static_cast<std::size_t>(cleared - known_.begin()))}));
  } catch (...) {
    // Without memory for the sentence there is no warning.
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void ReadyCheck::refuse(std::size_t parameter, bool is_copied) const {
  throw_error(Errc::invalid_argument, "{}{}{} (found by DdpOptions::check_ready)",
              {detail::late_write(*gradients_, parameter), detail::how_to_announce,
               is_copied ? "; or set DdpOptions::check_ready = false, for a library that uses its memory again" : ""});
}

DTRAIN_DEFINED void ReadyCheck::warn_of_late_write(std::size_t parameter) noexcept {
  has_warned_of_late_write_ = true;
  try {
    log(LogLevel::warning,
        format_text("{}if that is part of the gradient, {} (DdpOptions::check_ready = true ends the job at such a "
                    "write, false does not look for it)",
                    {detail::late_write(*gradients_, parameter), detail::how_to_announce}));
  } catch (...) {
    // Without memory for the sentence there is no warning.
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
