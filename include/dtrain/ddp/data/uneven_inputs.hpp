#pragma once
/// @file
/// UnevenInputs: training loop of ranks with different numbers of steps; a rank without data goes on until all have
/// ended.

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/rendezvous/client/store.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Agreement of the ranks on whether another step is made. Keys in the store:
/// - "ended": the number of ranks that have no more data. "first": the number of steps of the first rank to end.
/// - "most": the largest number of steps of a rank that has ended. A rank raises "most" before it adds to "ended".
/// - "step/S": "go" if a rank with data makes step S (from 1), "end" if no rank does.
///
/// A rank that has ended reads "most" once, and makes that many steps without a wait. It waits for "step/S" before each
/// later step S. Ranks with data set the keys of the steps after "first" once some rank has ended, which each of them
/// learns from a wait for "first" that runs in the background. So no message is sent while all ranks have data. The
/// last rank to end sets "step/S" of the step after "most" to "end"; "most" is then final. Example: rank A ends after
/// 11 steps, then rank B after 10. B makes step 11, because "most" is 11, and sets "step/12" to "end". Ranks without
/// data erase "step/S" at step S + kept_keys: steps communicate, so that no rank lags by that many steps, not even on a
/// GPU, where the host enqueues steps and goes on. Threads: all but watch(), which runs on the control loop, from the
/// thread that trains.
class StepAgreement {
 public:
  StepAgreement(rendezvous::Store store, int ranks)
      : store_(with_call_purpose(std::move(store), "agreeing on the steps of UnevenInputs")), ranks_(ranks) {}

  /// Waits until a rank has ended, and sets the keys of the steps that this rank has begun since that rank's last step.
  /// These may be several if a step waits for no other rank. Lifetime: the object outlives the coroutine.
  async::Task<> watch() {
    const std::string first = "first";
    const Deadline deadline = Deadline::unbounded("ranks have data for as long as they like");
    const std::string steps = co_await store_.get(first, deadline);
    first_watched_ = number_of(steps) + 1;
    // The thread that trains writes step_ first and reads some_ended_ then: one of the two sets the key of a step.
    some_ended_.store(true);
    last_watched_ = step_.load();
    for (std::uint64_t step = first_watched_; step <= last_watched_; ++step) {
      const std::string key = key_of(step);
      co_await store_.set(key, "go");
    }
  }

  /// A step with data. Blocking, once some rank has ended: until the store has the step's key.
  void begin_step() {
    const std::uint64_t step = step_.load() + 1;
    step_.store(step);
    if (some_ended_.load() && step >= first_watched_) store_.set(key_of(step), "go").wait();
  }

  /// This rank has no more data.
  void end() {
    last_with_data_ = step_.load();
    raise_most(last_with_data_);
    const std::int64_t ended = store_.add("ended", 1).wait();
    if (ended == 1) store_.set("first", std::to_string(last_with_data_)).wait();
    most_ = number_of(store_.get("most").wait());
    if (ended == ranks_) store_.set(key_of(most_ + 1), "end").wait();
  }

  /// Whether some rank makes another step. After end(). Blocking: until the ranks with data begin it, or end.
  bool next_step() {
    const std::uint64_t step = step_.load() + 1;
    const bool goes_on = step <= most_ || store_.get(key_of(step)).wait() != "end";
    if (step > last_with_data_ + kept_keys) store_.erase(key_of(step - kept_keys)).wait();
    if (goes_on) step_.store(step);
    return goes_on;
  }

  /// Erases the keys that are left. After all ranks have left their last next_step(), and their watch().
  /// @param erases_common on one rank
  void erase_keys(bool erases_common) {
    for (std::uint64_t step = first_watched_; step <= last_watched_; ++step)
      store_.erase(key_of(step)).wait();
    if (!erases_common) return;
    const std::uint64_t end = step_.load() + 1;
    const std::uint64_t first = number_of(store_.get("first").wait()) + 1;
    for (std::uint64_t step = std::max(first, end - std::min(end, kept_keys)); step <= end; ++step)
      store_.erase(key_of(step)).wait();
    for (const char* const key : {"first", "most", "ended"})
      store_.erase(key).wait();
  }

 private:
  static std::string key_of(std::uint64_t step) { return format_text("step/{}", {step}); }
  static std::uint64_t number_of(const std::string& text);

  /// "most" becomes at least `steps`.
  void raise_most(std::uint64_t steps) {
    rendezvous::CompareSet most;  // no value at first: the key does not exist
    do {
      most = store_.compare_set("most", most.now, std::to_string(steps)).wait();
    } while (!most.swapped && number_of(*most.now) < steps);
  }

  static constexpr std::uint64_t kept_keys = 1024;

  const rendezvous::Store store_;
  const int ranks_;
  std::atomic<std::uint64_t> step_{0};  ///< the last one that this rank has begun
  std::atomic<bool> some_ended_{false};
  std::uint64_t first_watched_ = 1, last_watched_ = 0;  ///< the steps whose keys watch() sets; later begin_step() does
  std::uint64_t last_with_data_ = 0;                    ///< this rank's last step with data
  std::uint64_t most_ = 0;                              ///< "most" when this rank had ended
};

/// Lets ranks make different numbers of steps. A rank without data makes steps without data until all ranks have ended:
///
///   dtrain::UnevenInputs inputs{group};
///   for (const Batch& batch : batches) {
///     inputs.begin_step();
///     ddp.backward([&](dtrain::Ready ready) { model.backward(batch, ready); });
///     optimizer.step();
///   }
///   inputs.finish([&] {
///     ddp.step_without_data();
///     optimizer.step();
///   });
///
/// Averages are over all ranks, and a rank without data adds zeros. No message is sent while every rank has data; later
/// each rank sends one or two a step to the store. Not with hooks::LocalSgd, whose steps send nothing. Buffers that
/// steps broadcast are rank 0's, also once it has no more data: they stay as they are then, and rank 0 logs a warning.
/// Every rank constructs the object, at the same place among its collectives. Lifetime: keeps the group. Threads: the
/// thread that trains.
/// @ingroup training
template <class Group>
class UnevenInputs {
 public:
  /// Blocking: no.
  explicit UnevenInputs(const Group& group)
      : group_(group),
        agreement_(std::make_shared<StepAgreement>(
            group.store().with_prefix(
                format_text("dtrain/uneven/{}/", {group::GroupAccess::of(group).next_number("uneven")})),
            group.world_size())),
        watch_(group.spawn([agreement = agreement_] { return agreement->watch(); })) {}

  /// Called before each step that reduces, before its forward pass and its first collective, by a rank that has data
  /// for it. Blocking: no, while every rank has data.
  /// @throws Error (invalid_argument) after finish(); the job's first cause
  void begin_step() {
    require_open("begin_step()");
    agreement_->begin_step();
  }

  /// Collective, blocking: calls `step` for each step that other ranks make, until all ranks have called finish(). It
  /// makes the same collectives as a step with data. @throws as `step`; Error (invalid_argument) if called twice; the
  /// job's first cause
  template <std::invocable F>
  void finish(F&& step) {
    require_open("finish()");
    has_ended_ = true;
    agreement_->end();
    while (agreement_->next_step())
      step();
    watch_.wait(Deadline::after(group_.timeout()));  // it may set a key until it ends
    group_.barrier();
    agreement_->erase_keys(group_.rank() == 0);
  }

 private:
  void require_open(const char* caller) const {
    group::GroupAccess::of(group_).rank_context()->require_may_block();
    if (has_ended_) {
      throw_error(Errc::invalid_argument, "{} of an UnevenInputs was called after finish(); make another one",
                  {caller});
    }
  }

  Group group_;
  std::shared_ptr<StepAgreement> agreement_;
  async::BackgroundTask<void> watch_;
  bool has_ended_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::UnevenInputs;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <charconv>

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED std::uint64_t StepAgreement::number_of(const std::string& text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
