#pragma once
/// @file
/// Step: one backward pass, from its first ready gradient to the last reduced one.

#include <cstddef>
#include <exception>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/ddp/ready.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Made by `begin()`; a model's backward pass calls `ready` on it, then `finish` is called. Destroyed without, the
/// step is abandoned: the other ranks are notified, since they wait for this one's gradients.
/// Threads: `ready` from any thread, concurrently for different i; everything else from the thread that owns it.
/// Lifetime: what made it outlives it. A Ready made from it stays valid when the Step moves, until it is finished.
class Step {
 public:
  /// Interface of a reducer that a Step drives.
  struct Target : Ready::Sink {
    virtual void finish() = 0;
    /// `unwinding`: an exception is on its way out of the scope that held the step; whoever catches it knows the text.
    virtual void abandon(bool unwinding) noexcept = 0;

   protected:
    ~Target() = default;
  };

  explicit Step(Target& target) noexcept : target_(&target), exceptions_(std::uncaught_exceptions()) {}
  Step(Step&& other) noexcept : target_(std::exchange(other.target_, nullptr)), exceptions_(other.exceptions_) {}
  Step& operator=(Step&& other) noexcept {
    if (this != &other) {
      abandon();
      target_ = std::exchange(other.target_, nullptr);
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~Step() { abandon(); }

  /// Gradient `parameter` is final in host memory. Blocking: no; a copy where the gradient is not bound.
  /// @throws Error (invalid_argument) out of range, ready before, after finish(), or for a gradient on a GPU; the job's
  /// cause once it failed.
  void ready(std::size_t parameter) { target().ready(parameter); }

  /// It is final once the work that `stream` holds now has run; until finish() nothing else touches its memory.
  void ready(std::size_t parameter, StreamHandle stream) { target().ready(parameter, stream); }

  /// It is in `gradient` this time, which stays unchanged until finish() returns; the reduced values are in the
  /// parameter's own gradient memory then.
  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) {
    target().ready(parameter, gradient, stream);
  }

  /// For code that takes a Ready.
  Ready ready() { return Ready(target()); }

  /// Collective, blocking: returns when every gradient is reduced, in the parameters' gradient memory. On CUDA it does
  /// not block: later work of the streams that were given to `ready` comes after the reduction. All `ready` calls have
  /// returned before. @throws Error (missing_gradient) that names the parameters that were not ready;
  /// PeerLost, JobFailed; Error (timeout).
  void finish() {
    Target& finishing = target();
    target_ = nullptr;  // a step that fails here has reported to the job itself
    finishing.finish();
  }

  bool finished() const noexcept { return target_ == nullptr; }

 private:
  Target& target() const {
    if (target_ == nullptr) {
      throw Error(Errc::invalid_argument, "a step was used after finish(); begin() a new one for each backward pass");
    }
    return *target_;
  }

  void abandon() noexcept {
    if (Target* const left = std::exchange(target_, nullptr)) {
      left->abandon(std::uncaught_exceptions() > exceptions_);
    }
  }

  Target* target_;
  int exceptions_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Step;
}  // namespace DTRAIN_NAMESPACE
