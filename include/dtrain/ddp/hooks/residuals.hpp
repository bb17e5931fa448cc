#pragma once
/// @file
/// Residuals: the part of each gradient that a rank has not sent yet, for hooks with error feedback.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Residuals of each parameter, which do not depend on the buckets. Threads: one at a time.
class Residuals {
 public:
  bool is_empty() const noexcept { return errors_.empty(); }

  /// Sets residuals of zero for each parameter. @param elements of each parameter's gradient; 0: no residual is kept
  void allocate(std::span<const std::size_t> elements);

  /// Residual of a parameter, empty if none is kept. Lifetime: this object's.
  std::span<float> of(std::size_t parameter) noexcept {
    return is_empty() ? std::span<float>() : std::span<float>(errors_[parameter]);
  }

  /// Averages the residuals over the ranks, so that no residual is lost. Collective, blocking.
  /// @throws the job's first cause
  template <class Group>
  void average(const Group& group) {
    for (std::vector<float>& error : errors_) {
      if (!error.empty()) group.all_reduce_without_cast(std::span(error), ReduceOp::average);
    }
  }

  /// Adds the residuals to a checkpoint's tensors, as "HOOK/PARAMETER/error". Lifetime: the views refer to this object.
  void add_to(std::vector<NamedTensor>& tensors, std::string_view hook);

 private:
  std::vector<std::vector<float>> errors_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void Residuals::allocate(std::span<const std::size_t> elements) {
  errors_.clear();
  for (const std::size_t count : elements) {
    errors_.emplace_back(count);
  }
}

DTRAIN_DEFINED void Residuals::add_to(std::vector<NamedTensor>& tensors, std::string_view hook) {
  for (std::size_t i = 0; i < errors_.size(); ++i) {
    if (!errors_[i].empty()) tensors.push_back({format_text("{}/{}/error", {hook, i}), tensor_view(errors_[i])});
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
