#pragma once
/// @file
/// HookRanks: the number of ranks that a hook's steps reduce over, which the group given to its state() must have.

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Compares the number of ranks in a hook's steps and in its state(). A hook knows its wrapper's group from the first
/// step on; state() may be called before the first step. Threads: one at a time.
class HookRanks {
 public:
  /// Called in each reduce(). @param ranks of the wrapper's group @throws Error (invalid_argument) if state() had
  /// another number
  void step_is_for(const char* hook, int ranks) {
    if (of_state_ != 0 && of_state_ != ranks) refuse_state(hook, of_state_, ranks);
    of_steps_ = ranks;
  }

  /// Called in state(). @param ranks of its group @throws Error (invalid_argument) if the steps had another number
  void state_is_for(const char* hook, int ranks) {
    if (of_steps_ != 0 && of_steps_ != ranks) refuse_state(hook, ranks, of_steps_);
    of_state_ = ranks;
  }

 private:
  [[noreturn]] static void refuse_state(const char* hook, int of_state, int of_steps);

  int of_steps_ = 0;  ///< 0: not known yet, as for of_state_
  int of_state_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void HookRanks::refuse_state(const char* hook, int of_state, int of_steps) {
  throw_error(Errc::invalid_argument,
              "{}: state() was given a group of world size {}, but the model is wrapped in one of world size {}; give "
              "state() the wrapper's group",
              {hook, of_state, of_steps});
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
