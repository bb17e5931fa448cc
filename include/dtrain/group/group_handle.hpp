#pragma once
/// @file
/// GroupHandle: interface of a process group without its policy's types. WrappedModel: facts of a wrapped model.
/// NotedSettings: settings that all ranks must share.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/group/store_collectives.hpp"

namespace DTRAIN_NAMESPACE::group {

class RankActivity;

/// Keys and values for the store.
using StoreEntries = std::vector<std::pair<std::string, std::string>>;

/// Blocking: until the store has the entries. @throws the job's first cause; Error (timeout)
using WaitUntilSet = std::function<void(Deadline)>;

/// A function of a text of each rank, in rank order.
using OnTexts = std::function<void(const std::vector<std::string>& texts)>;

/// Facts of a wrapped model that an elastic job reads at a commit. Threads: the one that drives steps.
struct WrappedModel {
  /// Lists the present weights, which are compared where a worker has received the state. @throws as the library that
  /// has moved them
  std::function<std::vector<TensorView>()> list_weights{};
  int no_sync_depth = 0;       ///< number of live NoSync objects
  bool has_unreduced = false;  ///< steps under no_sync() came after the last one that reduces
  /// Whether a step that reduces has begun and not ended well. Never null.
  std::shared_ptr<const bool> is_step_open = std::make_shared<bool>(false);
  /// Steps that reduce, after which a program that has made no commit since wait_for_commit() is told so.
  mutable std::uint64_t steps_to_reminder = 100;
  /// Whether the ranks' weights differ now; empty unless a hook lets them (hooks::LocalSgd).
  std::function<bool()> weights_differ{};

  /// Counts steps anew. With hooks::LocalSgd many steps have one commit.
  void wait_for_commit() const noexcept { steps_to_reminder = weights_differ ? 10000 : 100; }
};

/// Settings of objects that the program makes on every rank, with the same settings on all of them: a line of words
/// ("seed=1") for each object. A wrapper that compares the ranks' values compares them. Threads: any. Blocking: no.
class NotedSettings {
 public:
  /// Adds a line, unless it is there or 8 others are.
  void add(std::string line);
  std::string lines() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// A group without its policy's types, for code that is no template: agreement, planners, reports of failures.
/// GroupState has the typed members. Threads: any.
class GroupHandle : public StoreCollectives {
 public:
  /// Reports that a step was destroyed before it finished. While an exception unwinds, it is sent 100 ms later, so
  /// that the caller that catches the exception can report its text first. Blocking: no.
  virtual void report_abandoned_step(bool unwinding) const noexcept = 0;

  /// Number of the group's attempt in an elastic job; 0: the job is not elastic.
  virtual std::uint64_t elastic_attempt() const noexcept { return 0; }
  /// Whether the job is elastic. In an elastic job, ready() drops gradients after the attempt has failed, and finish()
  /// throws: the exception of a loss must not pass through the model's code, which may be noexcept or run in another
  /// thread. The gradients of a model that binds them are bound without their content, which an earlier attempt may
  /// have left.
  bool is_elastic() const noexcept { return elastic_attempt() != 0; }
  /// Whether some ranks of an elastic job's attempt have had no part in the training before it.
  virtual bool has_newcomers() const noexcept { return false; }
  /// Whether the tensor is known to have equal values on all ranks: an elastic job has transferred the state that it is
  /// part of.
  virtual bool is_equal_on_all_ranks(const TensorView&) const noexcept { return false; }
  /// Whether the tensor is part of the state that an elastic job keeps, and so outlives the job.
  virtual bool is_kept(const TensorView&) const noexcept { return false; }
  /// Adds a wrapped model, for as long as the pointer is shared.
  virtual void add_wrapped(std::shared_ptr<const WrappedModel>) const {}

  /// Where the group's wrappers say what they are doing; null: nowhere.
  virtual std::shared_ptr<RankActivity> activity() const { return nullptr; }

  virtual WaitUntilSet set_in_background(StoreEntries entries) const = 0;
  /// Gives rank 0 a text of each rank, in the background: `on_rank_0(texts)` is called on the control thread, with the
  /// texts in rank order, once every rank has called this with the same `name`, which is used once. A rank that leaves
  /// the job first waits for it, for a second at most. Blocking: no. @throws Error (closed) if this rank has left
  virtual void gather_in_background(std::string name, std::string text, OnTexts on_rank_0) const {
    static_cast<void>(name), static_cast<void>(text), static_cast<void>(on_rank_0);
  }
  NotedSettings& noted_settings() const noexcept { return noted_settings_; }
  /// Collective, blocking: a barrier of the group's ranks at the store.
  virtual void barrier_blocking(const std::string& name, const std::string& doing, Deadline deadline) const = 0;

 protected:
  GroupHandle() = default;
  ~GroupHandle() = default;

 private:
  mutable NotedSettings noted_settings_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void NotedSettings::add(std::string line) {
  constexpr std::size_t most = 8;
  const std::lock_guard lock(mutex_);
  if (lines_.size() < most && std::find(lines_.begin(), lines_.end(), line) == lines_.end()) {
    lines_.push_back(std::move(line));
  }
}

DTRAIN_DEFINED std::string NotedSettings::lines() const {
  const std::lock_guard lock(mutex_);
  std::string lines;
  for (const std::string& line : lines_)
    lines += line + '\n';
  return lines;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
