#pragma once
/// @file
/// ZeroGradients: backward pass of a rank without data for a step: every gradient is ready, with zeros.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// For rank 0 without data, if each step sends its buffers to the other ranks.
inline void warn_of_constant_buffers() {
  log(LogLevel::warning,
      "rank 0 has no more data, and each step gives all ranks its buffers: they stay as they are until all ranks have "
      "ended; give rank 0 the most data, or leave each rank its own buffers (DdpOptions::broadcast_buffers = false, "
      "with LibTorch BufferPolicy::none)");
}

/// Marks every gradient as ready, with zeros in place of it. Lifetime: outlives the step.
class ZeroGradients {
 public:
  /// @throws Error (unsupported) for gradients on a device
  explicit ZeroGradients(const std::vector<Parameter>& parameters) {
    std::size_t most = 0;
    for (const Parameter& parameter : parameters) {
      const TensorView& gradient = parameter.gradient;
      if (gradient.device.kind != DeviceKind::host) {
        throw Error(Errc::unsupported,
                    "a step without data is for gradients in host memory; on a GPU give the backward pass zeros");
      }
      most = std::max(most, gradient.bytes());
      views_.push_back(gradient);
    }
    memory_ = std::make_unique<std::byte[]>(most);
    for (TensorView& view : views_) {
      view.data = memory_.get();
    }
  }

  void operator()(Ready ready) const {
    for (std::size_t i = views_.size(); i-- > 0;) {
      ready(ReadyGradient{i, {}, &views_[i]});
    }
  }

 private:
  std::unique_ptr<std::byte[]> memory_;  ///< zeros
  std::vector<TensorView> views_;        ///< views of the gradients, all in memory_
};

}  // namespace DTRAIN_NAMESPACE::ddp
