#pragma once
/// @file
/// Step: one backward pass of a wrapper, which the program drives itself: ready() for each gradient, then finish().
/// Step::Target: its receiver.

#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/ready.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A step that the program drives itself; made by DistributedDataParallel::begin(). A model's backward pass calls
/// `ready`; afterwards the program calls `finish`. A step that is destroyed before `finish` is abandoned: the other
/// ranks, which wait for this rank's gradients, are notified.
/// Threads: `ready` from any thread, concurrently for different parameters; all other calls from the step's owner.
/// Lifetime: the maker outlives the step. A Ready made from a step is valid until the step is finished, even if the
/// Step moves.
/// @ingroup training
class Step {
 public:
  /// Interface of a reducer that a Step drives.
  struct Target : Ready::Sink {
    virtual bool finish() = 0;
    /// `unwinding`: an exception is leaving the scope of the step; the caller that catches it knows its text.
    virtual void abandon(bool unwinding) noexcept = 0;

   protected:
    ~Target() = default;
  };

  explicit Step(Target& target) noexcept : target_(&target, Abandon{std::uncaught_exceptions()}) {}

  /// Gradient `parameter` is final in host memory. Blocking: no; copies the gradient unless it is bound. A
  /// later write of the program is not part of the gradient (DdpOptions::check_ready looks for such writes).
  /// @throws Error (invalid_argument) for an index out of range, a second call in this step, a call after finish(), or
  /// a gradient on a GPU; the job's cause once the job failed.
  void ready(std::size_t parameter) { ready()(parameter); }

  /// The gradient is final once the work now enqueued on `stream` has run. Nothing touches its memory until finish().
  void ready(std::size_t parameter, StreamHandle stream) { ready()(parameter, stream); }

  /// In this step the gradient is final in `gradient`, host memory that is copied before the call returns. After the
  /// step the reduced values are in the parameter's own gradient memory.
  template <std::same_as<TensorView> View>
  void ready(std::size_t parameter, const View& gradient) {
    ready()(parameter, gradient);
  }

  /// The same for a gradient that is final once the work now enqueued on `stream` has run. On a GPU it stays unchanged
  /// until finish().
  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) {
    ready()(parameter, gradient, stream);
  }

  /// Callback form of `ready`, for a backward pass.
  Ready ready() { return Ready(target()); }

  /// @returns whether an optimizer is to update: false where a LossScaler has found gradients that are not finite,
  /// where StepOptions::inspect has returned false, and under no_sync(), where nothing is reduced. Always true with a
  /// DeviceLossScaler: kernels read found_inf().
  /// Collective, blocking: returns when all gradients are reduced, in the parameters' gradient memory. On CUDA it does
  /// not block: later work of the streams passed to `ready` runs after the reduction. All `ready` calls have returned.
  /// @throws Error (missing_gradient), naming the parameters without ready(); PeerLost, JobFailed; Error (timeout).
  bool finish() {
    Target& finishing = target();
    static_cast<void>(target_.release());  // a step that fails in finish() reports to the job itself
    return finishing.finish();
  }

  bool finished() const noexcept { return target_ == nullptr; }

 private:
  struct Abandon {
    int exceptions;  ///< those that unwind when the step begins

    void operator()(Target* target) const noexcept { target->abandon(std::uncaught_exceptions() > exceptions); }
  };

  Target& target() const {
    if (!target_) {
      throw_error(Errc::invalid_argument, "a step was used after finish(); begin() a new one for each backward pass");
    }
    return *target_;
  }

  std::unique_ptr<Target, Abandon> target_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Step;
}  // namespace DTRAIN_NAMESPACE
