#pragma once
/// @file
/// Checkpoints of a LibTorch training: modules, optimizers, schedulers, place in the samples, random numbers.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/file_extents.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/optimizer_state.hpp"
#include "dtrain/libtorch/optimizer_tensors.hpp"
#include "dtrain/libtorch/sharded_optimizer.hpp"
#include "dtrain/libtorch/training_parts.hpp"
#include "dtrain/libtorch/weights.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// Collective, blocking. @returns the file's tensors; none on ranks other than 0 @throws Error on every rank, also for
/// a tensor or an optimizer that rank 0 cannot write
template <class Group>
TrainingTensors collect_training(const Group& group, const std::string& path, const TrainingParts& parts) {
  PartTensors values;
  TrainingTensors tensors;
  values.generators = all_generators(group, parts.rng, device_of(parts.modules));
  const auto collect = [&] {
    for (const SavedOptimizer& optimizer : saved_optimizers(parts))
      values.optimizers.push_back(optimizer.present_tensors());
    for (torch::optim::LRScheduler* scheduler : parts.schedulers)
      values.schedulers.push_back(torch::full({1}, static_cast<std::int64_t>(steps_of(*scheduler)), torch::kInt64));
    if (parts.position != nullptr) values.position = numbers_of(*parts.position);
    tensors = training_tensors(parts, values);
    return true;
  };
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "collecting the checkpoint " + path, collect));
  return tensors;
}

inline void take_position(const std::string& path, SamplerPosition& position, const torch::Tensor& numbers) {
  const torch::Tensor mine = numbers_of(position);
  static constexpr std::array<const char*, 6> names{"epoch",        "step", "dataset_size",
                                                    "global_batch", "seed", "shuffle + 2 * drop_last"};
  const auto* const saved_numbers = numbers.data_ptr<std::int64_t>();
  for (std::int64_t i = 2; i < 6; ++i) {
    const auto saved = saved_numbers[i];
    const auto present = mine.data_ptr<std::int64_t>()[i];
    if (saved == present) continue;
    throw Error(Errc::invalid_argument, "the checkpoint " + path + " is of a sampler with " +
                                            names[static_cast<std::size_t>(i)] + " " + std::to_string(saved) +
                                            ", the program's has " + std::to_string(present) +
                                            "; go on with the same samples, or name another file");
  }
  const std::size_t steps = DistributedSampler(position.options).steps_per_epoch();
  if (saved_numbers[0] < 0 || saved_numbers[1] < 0 || static_cast<std::uint64_t>(saved_numbers[1]) > steps) {
    throw Error(Errc::protocol, "the checkpoint " + path + " has step " + std::to_string(saved_numbers[1]) +
                                    " of epoch " + std::to_string(saved_numbers[0]) + ", and an epoch has " +
                                    std::to_string(steps) + " steps; name another file");
  }
  position.epoch = static_cast<std::uint64_t>(saved_numbers[0]);
  position.step = static_cast<std::size_t>(saved_numbers[1]);
}

/// Tensors for a file with these extents.
struct LoadedTensors {
  LoadedTensors(const TrainingParts& parts, const std::vector<SavedOptimizer>& optimizers, const FileExtents& extents) {
    for (std::size_t i = 0; i < optimizers.size(); ++i)
      values.optimizers.push_back(optimizers[i].empty_tensors(extents.optimizers[i]));
    for (std::size_t i = 0; i < parts.schedulers.size(); ++i)
      values.schedulers.push_back(torch::empty({1}, torch::kInt64));
    if (parts.position != nullptr) values.position = torch::empty({6}, torch::kInt64);
    values.generators = torch::empty({extents.ranks, extents.generator}, torch::kUInt8);
    tensors = training_tensors(parts, values);
  }

  PartTensors values;
  TrainingTensors tensors;
};

/// Collective, blocking. @param load `load(tensors, updates)` reads the file to `tensors`; `updates` is
/// FileExtents::updates @returns false if there is no file
template <class Group, class Load>
bool load_training(const Group& group, const std::string& path, const TrainingParts& parts, Load load) {
  FileExtents extents;
  const std::vector<SavedOptimizer> optimizers = saved_optimizers(parts);
  std::optional<LoadedTensors> loaded;
  const auto load_file = [&] {
    loaded.emplace(parts, optimizers, extents);
    return load(loaded->tensors.list, extents.updates);
  };
  if (!load_with_extents(group, path, optimizers, device_of(parts.modules), extents, load_file)) {
    return false;
  }
  const auto& [values, tensors] = *loaded;
  store_copies(tensors.saved);
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    optimizers[i].take(path, values.optimizers[i], extents.optimizers[i]);
  for (std::size_t i = 0; i < parts.schedulers.size(); ++i)
    steps_of(*parts.schedulers[i]) = static_cast<unsigned>(values.schedulers[i].data_ptr<std::int64_t>()[0]);
  if (parts.position != nullptr) take_position(path, *parts.position, values.position);
  if (extents.ranks == group.world_size()) {
    set_state(parts.rng, values.generators[group.rank()]);
  } else if (group.rank() == 0) {
    log(LogLevel::warning, "the checkpoint " + path + " has the random numbers of " + std::to_string(extents.ranks) +
                               " ranks and the group has " + std::to_string(group.world_size()) +
                               ": generators stay as they are");
  }
  return true;
}

/// The parameters that need gradients.
inline std::vector<ModuleTensor> trained_parameters_of(const Modules& modules) {
  std::vector<ModuleTensor> parameters;
  for (const ModuleTensor& named : parameters_of(modules)) {
    if (named.tensor.requires_grad()) parameters.push_back(named);
  }
  return parameters;
}

/// @param updates FileExtents::updates @throws Error (protocol) unless it is 0 or the program's number of parameters
inline void require_number_of_parameters(const std::string& path, std::size_t parameters, std::int64_t updates) {
  if (updates == 0 || static_cast<std::uint64_t>(updates) == parameters) return;
  throw Error(Errc::protocol, "the checkpoint " + path + " has the state of " + std::to_string(updates) +
                                  " parameters, and the program has " + std::to_string(parameters) +
                                  "; give it the modules that it was saved with");
}

/// Names of the state arrays in shard files, which are the first tensors of the optimizer's state.
template <class O>
std::vector<std::string> array_names(StateOf<O>) {
  using State = typename RuleOf<O>::template Rule<float>::State;
  return std::vector<std::string>(std::begin(State::names), std::end(State::names));
}

/// State arrays of the optimizer that has the updated parameters; none: no parameter was updated.
inline std::vector<std::string> arrays_of_owner(const std::vector<torch::optim::Optimizer*>& optimizers,
                                                const std::unordered_map<const void*, std::size_t>& index_of,
                                                const std::vector<std::int64_t>& updates, const std::string& task) {
  std::vector<std::string> arrays;
  for (torch::optim::Optimizer* const optimizer : optimizers) {
    bool is_owner = false;
    for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
      is_owner = is_owner || std::any_of(group.params().begin(), group.params().end(), [&](const torch::Tensor& each) {
                   const auto found = index_of.find(each.unsafeGetTensorImpl());
                   return found != index_of.end() && updates[found->second] > 0;
                 });
    }
    if (!is_owner) continue;
    with_state_of(*optimizer, task, [&](auto of) { arrays = array_names(of); });
  }
  return arrays;
}

/// Gives optimizers that are not sharded the state of a sharded one. Collective, blocking.
/// @param updates of each parameter that needs gradients, after require_number_of_parameters
template <class Group>
void load_whole_state(const Group& group, const std::string& path, const TrainingParts& parts,
                      const ddp::ShardIndex& index, const std::vector<std::int64_t>& updates) {
  const std::vector<ModuleTensor> parameters = trained_parameters_of(parts.modules);
  std::unordered_map<const void*, std::size_t> index_of;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    index_of.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  constexpr const char* task = "load_checkpoint() of a sharded optimizer's state";
  ddp::WholeState whole;
  whole.arrays = arrays_of_owner(parts.optimizers, index_of, updates, task);
  for (const ModuleTensor& parameter : parameters)
    whole.parameters.push_back(parameter.name);
  std::vector<std::vector<torch::Tensor>> state(whole.arrays.size());
  whole.memory.resize(whole.arrays.size());
  std::vector<torch::Tensor> all;
  for (std::size_t array = 0; array < state.size(); ++array) {
    for (const auto& [name, parameter] : parameters) {
      const bool is_double = parameter.scalar_type() == torch::kDouble;
      const torch::Tensor made = torch::empty({parameter.numel()}, is_double ? torch::kDouble : torch::kFloat);
      state[array].push_back(made);
      whole.memory[array].push_back(view_of(made).flat());
      all.push_back(made);
    }
  }
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "reading the shard files of " + path, [&] {
    if (!state.empty()) ddp::read_whole_state(ddp::detail::behind_link(path), index, whole);
    return true;
  }));
  broadcast_tensors(group, all);
  for (torch::optim::Optimizer* optimizer : parts.optimizers) {
    with_state_of(*optimizer, task, [&](auto of) {
      using Of = decltype(of);
      for (torch::optim::OptimizerParamGroup& options : optimizer->param_groups()) {
        for (const torch::Tensor& parameter : options.params()) {
          const auto found = index_of.find(parameter.unsafeGetTensorImpl());
          const auto& given = static_cast<const typename Of::Options&>(options.options());
          // Its constructor makes the state of each parameter, which step() needs and a sharded Adagrad does not save.
          if constexpr (std::is_same_v<Of, StateOf<torch::optim::Adagrad>>) {
            present_state<Of>(*optimizer, parameter, given);
          }
          if (found == index_of.end() || updates[found->second] <= 0 || !Of::has_state(given)) continue;
          std::size_t array = 0;
          Of::state(present_state<Of>(*optimizer, parameter, given), [&](const char*, auto& value) {
            if constexpr (std::is_same_v<decltype(value), torch::Tensor&>) {
              if (!value.defined() || array >= Of::arrays) return;
              const torch::Tensor& from = state[array++][found->second];
              value.copy_(torch::from_blob(from.data_ptr(), value.sizes(), value.strides(), from.options()));
            } else {
              value = updates[found->second];
            }
          });
        }
      }
    });
  }
}

template <class T>
inline constexpr bool is_sharded = false;
template <class O, class C>
inline constexpr bool is_sharded<ShardedOptimizer<O, C>> = true;

/// Address of the ShardedOptimizer among the parts; nullptr if there is none.
template <class... Parts>
auto sharded_of(Parts&... parts) {
  static_assert((0 + ... + static_cast<int>(is_sharded<Parts>)) <= 1,
                "dtrain: a checkpoint takes one ShardedOptimizer: save the other with a file of its own");
  const auto found = std::tuple_cat([&] {
    if constexpr (is_sharded<Parts>) {
      return std::tuple(&parts);
    } else {
      return std::tuple<>();
    }
  }()...);
  if constexpr (std::tuple_size_v<decltype(found)> == 0) {
    return nullptr;
  } else {
    return std::get<0>(found);
  }
}

template <class Net, class... Parts>
TrainingParts parts_of(const Net& net, Parts&... parts) {
  TrainingParts all;
  all.modules = modules_of(net);
  (add_part(all, parts), ...);
  return all;
}

/// Collective, blocking. @param save `save(tensors)` or, with a sharded optimizer, `save(tensors, optimizer)`
template <class Group, class Save, class Net, class... Parts>
auto save_training(const Group& group, const std::string& path, Save save, const Net& net, Parts&... parts) {
  const torch::NoGradGuard no_grad;
  const TrainingParts all = parts_of(net, parts...);
  TrainingTensors tensors = collect_training(group, path, all);
  const auto sharded = sharded_of(parts...);
  if constexpr (std::is_null_pointer_v<decltype(sharded)>) {
    return save(tensors.list);
  } else {
    std::vector<std::int64_t> updates = sharded->updates();
    tensors.list.push_back({std::string(updates_tensor), tensor_view(updates)});
    return save(tensors.list, sharded->sharded());
  }
}

}  // namespace detail

/// Writes a file from which a training continues with the same bits. The file has rank 0's parameters and buffers, the
/// state of `parts`, and every rank's random numbers.
/// Tensors of the file, a safetensors file:
/// - Each parameter and buffer by its name in Python's state_dict(), elements in the order of indices. With several
///   Modules, `0.NAME` is of the first one. A tensor that has several names is written once, by the first one, with
///   `{other name: first name}` in the metadata. Elements of ComplexDouble and ComplexHalf are pairs in a last
///   dimension; more than 8 dimensions become one.
/// - `dtrain.optimizer.state.PARAMETER.ARRAY`, of Adam, AdamW, SGD, RMSprop and Adagrad: the parameter's arrays by
///   PyTorch's names (`exp_avg`), in its shape, and `.step`, i64 []; none before its first update.
/// - `dtrain.optimizer.param_groups.PARAMETER.OPTION`: the options of its group, f64 [] and bool []; `betas`, f64 [2].
///   PARAMETER is the name of the tensor above, or "(3)" for parameter 3 of the optimizer, if it is in no module.
/// - `dtrain.optimizer.CLASS`, u8 [bytes]: of other classes, the bytes that torch::save writes.
/// - `dtrain.optimizer1.` ...: the same of the second optimizer, and so on.
/// - `dtrain.scheduler`, `dtrain.scheduler1` ..., i64 [1]: the number of steps.
/// - `dtrain.sampler`, i64 [6]: epoch, step, dataset_size, global_batch, seed, shuffle + 2 * drop_last.
/// - `dtrain.rng`, u8 [ranks, bytes]: get_state() of each rank's generator.
/// - `dtrain.list.NAME`: the tensors of lists.
/// - With a ShardedOptimizer: `dtrain.optimizer.updates`, i64 [parameters], the number of updates of each parameter
///   that needs gradients, and four tensors that name the shard files.
///
/// @param net as DistributedDataParallel's, before or after wrapping
/// @param parts in any order of these kinds, and each kind in the same order when the file is loaded: optimizers, of
/// which one may be a ShardedOptimizer; schedulers (torch::optim::LRScheduler); a SamplerPosition; a torch::Generator
/// (none: the default one of the CPU); lists of NamedTensor (LossScaler::state())
///
/// The state of a ShardedOptimizer is in shard files, named and committed as by save_checkpoint of a
/// dtrain::ShardedOptimizer. Collective, blocking, atomic, and @throws as save_checkpoint of tensors; Error
/// (invalid_argument) for a module whose tensor has a name that begins with `dtrain.`
/// @ingroup libtorch
template <class Group, detail::HasModules Net, detail::TrainingPart... Parts>
void save_checkpoint(const Group& group, const std::string& path, const Net& net, Parts&&... parts) {
  const auto save = [&](const std::vector<NamedTensor>& tensors, auto&... sharded) {
    ddp::save_checkpoint(group, path, tensors, sharded...);
  };
  detail::save_training(group, path, save, net, parts...);
}

/// Saves the same file in the background, as save_checkpoint_async of tensors: the training may go on at once, and
/// every rank calls wait() of the result before the next checkpoint of that name. Collective, blocking: the copies, and
/// the exchange of the random numbers.
/// @ingroup libtorch
template <class Group, detail::HasModules Net, detail::TrainingPart... Parts>
[[nodiscard]] PendingCheckpoint save_checkpoint_async(const Group& group, const std::string& path, const Net& net,
                                                      Parts&&... parts) {
  const auto save = [&](const std::vector<NamedTensor>& tensors, auto&... sharded) {
    return ddp::save_checkpoint_async(group, path, tensors, sharded...);
  };
  return detail::save_training(group, path, save, net, parts...);
}

/// Loads the file of save_checkpoint on every rank, from parts of the same kinds. The state of a ShardedOptimizer may
/// have been saved by any number of ranks. Optimizers that are not sharded also take it; then rank 0 reads the shard
/// files. With another number of ranks, random numbers stay as they are, and rank 0 logs a warning.
/// Collective, blocking: as load_checkpoint of tensors. @returns false on every rank if rank 0 has no such file
/// @throws as load_checkpoint of tensors, also for an optimizer with other arrays, options or names of parameters.
/// After the modules are loaded: Error (invalid_argument) if the sampler has other options; (protocol) if parameters of
/// one group have different options in the file, a counter is negative, or an optimizer does not take its bytes
/// @ingroup libtorch
template <class Group, detail::HasModules Net, detail::TrainingPart... Parts>
bool load_checkpoint(const Group& group, const std::string& path, const Net& net, Parts&&... parts) {
  const torch::NoGradGuard no_grad;
  const detail::TrainingParts all = detail::parts_of(net, parts...);
  const auto sharded = detail::sharded_of(parts...);
  constexpr bool is_plain = std::is_null_pointer_v<decltype(sharded)>;
  return ddp::detail::load_past_replacement([&](ddp::ShardIndex& index) {
    std::vector<std::int64_t> updates;
    const auto load = [&](std::vector<NamedTensor> tensors, std::int64_t parameters) {
      if constexpr (is_plain) {
        detail::require_number_of_parameters(path, detail::trained_parameters_of(all.modules).size(), parameters);
      } else {
        detail::require_number_of_parameters(path, sharded->updates().size(), parameters);
      }
      updates.resize(static_cast<std::size_t>(parameters));
      if (parameters != 0) tensors.push_back({std::string(detail::updates_tensor), tensor_view(updates)});
      if constexpr (is_plain) {
        if (parameters != 0) tensors = ddp::detail::with_index(tensors, index);
        return ddp::load_checkpoint(group, path, tensors);
      } else {
        if (parameters == 0) {
          throw Error(Errc::invalid_argument, "the checkpoint " + path +
                                                  " was saved without a ShardedOptimizer; load it into the optimizer "
                                                  "itself, and go on without sharding");
        }
        return ddp::load_checkpoint(group, path, tensors, sharded->sharded());
      }
    };
    if (!detail::load_training(group, path, all, load)) {
      return false;
    }
    if (std::any_of(updates.begin(), updates.end(), [](std::int64_t count) { return count < 0; })) {
      throw Error(Errc::protocol, "the checkpoint " + path + " has a negative number of updates; name another file");
    }
    if constexpr (!is_plain) {
      sharded->set_updates(updates);
    } else if (!updates.empty()) {
      detail::load_whole_state(group, path, all, index, updates);
    }
    return true;
  });
}

}  // namespace DTRAIN_NAMESPACE::libtorch

namespace DTRAIN_NAMESPACE {
using libtorch::load_checkpoint;
using libtorch::save_checkpoint;
using libtorch::save_checkpoint_async;
}  // namespace DTRAIN_NAMESPACE
