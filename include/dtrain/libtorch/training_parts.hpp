#pragma once
/// @file
/// Training parts: arguments of a LibTorch checkpoint, and their tensors in the file. SamplerPosition: place in the
/// samples. training_state(): for an elastic job.

#include <torch/torch.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <iterator>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/optimizer_state.hpp"
#include "dtrain/libtorch/optimizer_tensors.hpp"
#include "dtrain/libtorch/sharded_optimizer.hpp"
#include "dtrain/libtorch/weights.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// Where a training is in the samples of a DistributedSampler: the next step is `step` of `epoch`, both from 0.
/// @ingroup libtorch
struct SamplerPosition {
  explicit SamplerPosition(const DistributedSampler& sampler) : options(sampler.options()) {}

  SamplerOptions options;
  std::uint64_t epoch = 0;
  std::size_t step = 0;
};

namespace detail {

/// Tensors of a training in a checkpoint file. Lifetime: `list` refers to the tensors in `saved`.
struct TrainingTensors {
  std::vector<SavedTensor> saved;
  std::vector<NamedTensor> list;
};

inline torch::Tensor state_of(const torch::Generator& generator) {
  torch::Generator same = generator;
  const std::lock_guard<std::mutex> lock(same.mutex());
  return same.get_state();
}

/// @param state cloned, because LibTorch 2 reads it from the beginning of its storage @throws Error (protocol) for the
/// state of another generator
inline void set_state(const torch::Generator& generator, const torch::Tensor& state) {
  torch::Generator same = generator;
  const std::lock_guard<std::mutex> lock(same.mutex());
  try {
    same.set_state(state.clone());
  } catch (const c10::Error& error) {
    throw Error(Errc::protocol, "the generator cannot take the random numbers of the checkpoint: " +
                                    std::string(error.what_without_backtrace()) +
                                    "; load it with the LibTorch and the kind of generator that it was saved with");
  }
}

/// Numbers of a position: epoch, step, samples, global batch, seed, and 1 if shuffled, plus 2 with drop_last.
inline torch::Tensor numbers_of(const SamplerPosition& position) {
  const SamplerOptions& options = position.options;
  const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return torch::tensor(
      {number(position.epoch), number(position.step), number(options.dataset_size), number(options.global_batch),
       number(options.seed), std::int64_t{options.shuffle ? 1 : 0} + std::int64_t{options.drop_last ? 2 : 0}},
      torch::kInt64);
}

/// Device of the first parameter, where the file's other tensors are placed: a group may accept memory of one device
/// only.
inline torch::Device device_of(const Modules& modules) {
  for (const auto& module : modules) {
    for (const torch::Tensor& parameter : module->parameters()) {
      return parameter.device();
    }
  }
  return torch::kCPU;
}

/// Parts of a training. Lifetime: all that it points to outlives it.
struct TrainingParts {
  Modules modules;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<torch::optim::LRScheduler*> schedulers;
  SamplerPosition* position = nullptr;
  std::vector<NamedTensor> tensors;
  torch::Generator rng = at::detail::getDefaultCPUGenerator();
};

inline void add_part(TrainingParts& parts, torch::optim::Optimizer& optimizer) {
  parts.optimizers.push_back(&optimizer);
}
template <class O, class C>
void add_part(TrainingParts& parts, ShardedOptimizer<O, C>& optimizer) {
  parts.optimizers.push_back(&optimizer.options());
}
inline void add_part(TrainingParts& parts, torch::optim::LRScheduler& scheduler) {
  parts.schedulers.push_back(&scheduler);
}
inline void add_part(TrainingParts& parts, SamplerPosition& position) {
  if (parts.position != nullptr) {
    throw Error(Errc::invalid_argument, "a checkpoint was given two SamplerPositions; give one");
  }
  parts.position = &position;
}
inline void add_part(TrainingParts& parts, const std::vector<NamedTensor>& tensors) {
  parts.tensors.insert(parts.tensors.end(), tensors.begin(), tensors.end());
}
inline void add_part(TrainingParts& parts, const torch::Generator& rng) {
  parts.rng = rng;
}

/// The optimizers, in their order.
inline std::vector<SavedOptimizer> saved_optimizers(const TrainingParts& parts) {
  std::vector<SavedOptimizer> saved;
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i)
    saved.emplace_back(*parts.optimizers[i], i, parts.modules);
  return saved;
}

template <class Part>
concept TrainingPart = requires(TrainingParts& parts, std::remove_reference_t<Part>& part) {
  add_part(parts, part);
};

/// Tensors of the parts that are no tensors themselves: contents of a file that is written, or memory for one that is
/// read.
struct PartTensors {
  std::vector<std::vector<ModuleTensor>> optimizers;  ///< tensors of each SavedOptimizer
  std::vector<torch::Tensor> schedulers;              ///< i64 [1]
  torch::Tensor position;                             ///< i64 [6]; undefined: none
  torch::Tensor generators;                           ///< u8 [ranks, bytes]
};

/// The file's tensors. @throws Error (invalid_argument) for a module whose tensor has a name of dtrain's
inline TrainingTensors training_tensors(const TrainingParts& parts, const PartTensors& values) {
  const torch::Device device = device_of(parts.modules);
  TrainingTensors tensors{saved_tensors(parts.modules), {}};
  for (const SavedTensor& saved : tensors.saved) {
    if (!saved.name.starts_with(own_prefix)) continue;
    throw Error(Errc::invalid_argument, "a checkpoint was given a module with the tensor '" + saved.name +
                                            "', and names that begin with dtrain. are those of the optimizers, "
                                            "random numbers and lists; register its submodule by another name");
  }
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    tensors.saved.push_back({name, {}, tensor, tensor.contiguous().to(device)});
  };
  for (const std::vector<ModuleTensor>& optimizer : values.optimizers) {
    for (const auto& [name, tensor] : optimizer)
      add(name, tensor);
  }
  for (std::size_t i = 0; i < values.schedulers.size(); ++i)
    add(numbered_name("scheduler", i), values.schedulers[i]);
  if (values.position.defined()) add("dtrain.sampler", values.position);
  add("dtrain.rng", values.generators);
  tensors.list = views_of(tensors.saved);
  for (NamedTensor of_list : parts.tensors) {
    of_list.name.insert(0, "dtrain.list.");
    tensors.list.push_back(std::move(of_list));
  }
  return tensors;
}

/// State of every rank's generator, [ranks, bytes]. Collective, blocking.
template <class Group>
torch::Tensor all_generators(const Group& group, const torch::Generator& generator, torch::Device device) {
  const torch::Tensor mine = state_of(generator).to(device);
  const torch::Tensor all = torch::empty({group.world_size(), mine.numel()}, mine.options());
  finish_device_work(mine);
  group.all_gather(view_of(mine).flat(), view_of(all).flat());
  return all;
}

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
        Of::options(static_cast<typename Of::Options&>(group.options()), [&](const char* member, auto&... numbers) {
          if constexpr ((std::is_same_v<decltype(numbers), double&> && ...)) {
            std::string full_name = name + member;
            ((kept.push_back({full_name, tensor_view(&numbers, {})}), full_name += '2'), ...);
          }
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
/// - Buffers, options (the rate), and schedulers' counters may be written at any time, and are put back before a step
///   is repeated.
/// torch::load and set_data are followed, if type, shape and strides stay. Workers whose tensors have other strides are
/// rejected.
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
