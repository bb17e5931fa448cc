#pragma once
/// @file
/// training_state(): LibTorch modules, optimizers and schedulers as the kept state of an elastic job. Programs
/// call it.

#include <torch/torch.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/optimizer_state.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// Elements in place. Types without a DType are bytes. The strides of a tensor that is not contiguous are in its name:
/// workers exchange elements in the order of the memory, and compare names before.
inline NamedTensor kept_tensor(const std::string& name, const torch::Tensor& tensor) {
  const torch::Tensor values = tensor.detach();
  const std::string order = order_of(values);
  const std::string full_name = order.empty() ? name : name + " (strides " + order + ")";
  const bool is_bytes = values.scalar_type() == torch::kChar || values.scalar_type() == torch::kShort;
  return {full_name, view_of(is_bytes && order.empty() ? bytes_of(values) : values, full_name)};
}

inline std::vector<NamedTensor> kept_tensors(const std::vector<ModuleTensor>& tensors) {
  std::vector<NamedTensor> kept;
  for (const ModuleTensor& each : tensors)
    kept.push_back(kept_tensor("net." + each.name, each.tensor));
  return kept;
}

/// A part of the training state: what is written in a commit, and what is also written elsewhere.
struct KeptPart {
  elastic::TensorSource in_commit;
  elastic::TensorSource elsewhere;
};

inline KeptPart kept_part(torch::optim::Optimizer& optimizer, const std::string& number) {
  const std::string prefix = "optimizer" + number + ".";
  const auto values = [&optimizer, prefix] {
    std::vector<NamedTensor> kept;
    with_state_of(optimizer, "training_state()", [&](auto of) {
      using Of = decltype(of);
      std::size_t index = 0;
      for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
        for (const torch::Tensor& parameter : group.params()) {
          const std::string name = prefix + std::to_string(index++) + ".";
          auto& options = static_cast<typename Of::Options&>(group.options());
          if (!parameter.requires_grad() || !Of::has_state(options)) continue;
          Of::state(present_state<Of>(optimizer, parameter, options), [&](const char* member, auto& value) {
            if constexpr (std::is_same_v<decltype(value), torch::Tensor&>) {
              if (value.defined()) kept.push_back(kept_tensor(name + member, value));
            } else {
              kept.push_back({name + member, tensor_view(&value, {})});
            }
          });
        }
      }
    });
    return kept;
  };
  // A program may set the rate at the head of a step: until the commit it differs between ranks that give the step up.
  const auto options = [&optimizer, prefix] {
    std::vector<NamedTensor> kept;
    with_state_of(optimizer, "training_state()", [&](auto of) {
      using Of = decltype(of);
      std::size_t index = 0;
      for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
        const std::string name = prefix + "group" + std::to_string(index++) + ".";
        Of::options(static_cast<typename Of::Options&>(group.options()), [&](const char* member, double& value) {
          kept.push_back({name + member, tensor_view(&value, {})});
        });
      }
    });
    return kept;
  };
  return {values, options};
}

inline KeptPart kept_part(torch::optim::LRScheduler& scheduler, const std::string& number) {
  return {{}, [&scheduler, name = "scheduler" + number + ".steps"] {
            auto* const steps = reinterpret_cast<std::byte*>(&steps_of(scheduler));
            static_assert(sizeof(unsigned) == sizeof(std::int32_t));
            return std::vector<NamedTensor>{{name, {steps, Shape{}, DType::i32, {}}}};
          }};
}

/// One source of the same tensors, in this order.
inline elastic::TensorSource joined(std::vector<elastic::TensorSource> sources) {
  return [sources = std::move(sources)] {
    std::vector<NamedTensor> all;
    for (const elastic::TensorSource& source : sources) {
      if (!source) continue;
      std::vector<NamedTensor> some = source();
      all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    return all;
  };
}

template <class T>
concept KeptObject = std::derived_from<T, torch::optim::Optimizer> || std::derived_from<T, torch::optim::LRScheduler>;

}  // namespace detail

/// State of an elastic job's worker, for dtrain::Elastic::keep, before train():
///
///   job.keep(dtrain::libtorch::training_state(net, adam, scheduler));
///
/// - Parameters, and the optimizers' tensors and counters, are written in commit() only: `job.commit([&] {
///   adam.step(); scheduler.step(); })`. Tensors that step() makes in the first update are made in this call.
/// - Buffers, options such as the rate, and schedulers' counters may be written at any time, and are put back before a
///   step is repeated.
/// torch::load and set_data are followed, if type, shape and strides stay. Workers whose tensors have other strides are
/// refused.
/// @param net as DistributedDataParallel's
/// @param others any number of LibTorch optimizers (Adam, AdamW, SGD, RMSprop, Adagrad) and schedulers (LRScheduler)
/// Lifetime: the modules are kept; optimizers and schedulers outlive train(). Memory: on the host.
/// @throws Error (unsupported) for another optimizer, SGD with dampening, and tensors as view_of
/// @ingroup libtorch
template <class Net, class... Others>
elastic::LibraryState training_state(const Net& net, Others&... others) {
  static_assert(
      (detail::KeptObject<Others> && ...),
      "dtrain: training_state(net, ...) takes LibTorch's optimizers, and schedulers of the class LRScheduler; "
      "ReduceLROnPlateauScheduler shows nothing of its state: keep what decides on the rate in a tensor of "
      "your own (job.keep), and set the rate in commit()");
  const Modules modules = detail::modules_of(net);
  std::vector<detail::KeptPart> parts{{[modules] { return detail::kept_tensors(detail::parameters_of(modules)); },
                                       [modules] {
                                         std::vector<ModuleTensor> buffers = detail::buffers_of(modules);
                                         for (ModuleTensor& buffer : buffers)
                                           buffer.tensor = detail::distinct_elements(buffer.tensor);
                                         return detail::kept_tensors(buffers);
                                       }}};
  (parts.push_back(detail::kept_part(others, std::to_string(parts.size() - 1))), ...);
  std::vector<elastic::TensorSource> in_commit, elsewhere;
  for (const detail::KeptPart& part : parts) {
    in_commit.push_back(part.in_commit);
    elsewhere.push_back(part.elsewhere);
  }
  return {detail::joined(std::move(in_commit)), detail::joined(std::move(elsewhere))};
}

}  // namespace DTRAIN_NAMESPACE::libtorch
