#pragma once
/// @file
/// Checkpoints of a training with LibTorch: modules, an optimizer, also a sharded one, position in the samples, and
/// random numbers. Programs call it.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <c10/util/Type.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/sharded_optimizer.hpp"

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

/// A tensor of the program, and contiguous memory for its elements: the tensor's own, or a copy.
struct SavedTensor {
  std::string name;
  torch::Tensor target;
  torch::Tensor contiguous;
};

/// Tensors of a training in a checkpoint file. Lifetime: `list` refers to the tensors in `saved`.
struct TrainingTensors {
  std::vector<SavedTensor> saved;
  std::vector<NamedTensor> list;
};

/// View of a saved tensor. Elements of a type without a DType are bytes, with the type in the name.
inline NamedTensor named_tensor(const SavedTensor& saved) {
  switch (saved.contiguous.scalar_type()) {
    case torch::kChar:
    case torch::kShort:
      return {saved.name + " (" + c10::toString(saved.contiguous.scalar_type()) + ")",
              view_of(bytes_of(saved.contiguous), saved.name)};
    default: return {saved.name, view_of(saved.contiguous, saved.name)};
  }
}

inline std::string name_of(const torch::optim::Optimizer& optimizer) {
  return "optimizer (" + c10::demangle(typeid(optimizer).name()) + ")";
}

inline torch::Tensor bytes_tensor(const std::string& bytes) {
  const torch::Tensor made = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  bytes.copy(static_cast<char*>(made.data_ptr()), bytes.size());
  return made;
}

inline torch::Tensor state_of(const torch::Generator& generator) {
  torch::Generator same = generator;
  const std::lock_guard<std::mutex> lock(same.mutex());
  return same.get_state();
}

/// @param state cloned, because LibTorch 2 reads it from the beginning of its storage
inline void set_state(const torch::Generator& generator, const torch::Tensor& state) {
  torch::Generator same = generator;
  const std::lock_guard<std::mutex> lock(same.mutex());
  same.set_state(state.clone());
}

/// Numbers of a position: epoch, step, samples, global batch, seed, and 1 if shuffled.
inline torch::Tensor numbers_of(const SamplerPosition& position) {
  const SamplerOptions& options = position.options;
  const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return torch::tensor({number(position.epoch), number(position.step), number(options.dataset_size),
                        number(options.global_batch), number(options.seed), std::int64_t{options.shuffle ? 1 : 0}},
                       torch::kInt64);
}

/// The group's stream does not wait for LibTorch's. Blocking.
inline void finish_device_work(const torch::Tensor& tensor) {
  if (tensor.is_cuda()) torch::cuda::synchronize(tensor.get_device());
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

/// The file's tensors, in the file's order.
inline TrainingTensors training_tensors(const Modules& modules, const torch::optim::Optimizer& optimizer,
                                        const torch::Tensor& optimizer_bytes, const torch::Tensor& position,
                                        const torch::Tensor& generators) {
  const torch::Device device = device_of(modules);
  std::vector<ModuleTensor> all = parameters_of(modules);
  for (ModuleTensor& buffer : buffers_of(modules)) {
    all.push_back(std::move(buffer));
  }
  TrainingTensors tensors;
  for (const ModuleTensor& named : all) {
    const torch::Tensor target = named.tensor.detach();
    tensors.saved.push_back({"net." + named.name, target, target.contiguous()});
  }
  for (const auto& [name, tensor] :
       {std::pair(name_of(optimizer), optimizer_bytes), std::pair(std::string("sampler"), position),
        std::pair(std::string("rng"), generators)}) {
    tensors.saved.push_back({name, tensor, tensor.to(device)});
  }
  for (const SavedTensor& saved : tensors.saved) {
    tensors.list.push_back(named_tensor(saved));
    finish_device_work(saved.contiguous);
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

/// Extents of the file's tensors that depend on the training: {the optimizer's bytes, ranks, a generator's bytes}.
/// @returns false if there is no file @throws as load_checkpoint
inline bool read_extents(const std::string& path, std::array<std::int64_t, 3>& extents) {
  const std::optional<std::vector<ddp::ParameterSignature>> list = ddp::read_checkpoint_list(path);
  if (!list) return false;
  for (const ddp::ParameterSignature& tensor : *list) {
    if (std::string_view(tensor.name).starts_with("optimizer (") && tensor.shape.extents().size() == 1) {
      extents[0] = tensor.shape.extents()[0];
    } else if (tensor.name == "rng" && tensor.shape.extents().size() == 2) {
      extents[1] = tensor.shape.extents()[0];
      extents[2] = tensor.shape.extents()[1];
    }
  }
  return true;
}

/// LibTorch 1.13 and 2 load the state; not all of them load the options, such as the rate.
inline void load_options(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive groups;
  archive.read("param_groups", groups);
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::InputArchive group;
    torch::serialize::InputArchive options;
    groups.read("param_groups/" + std::to_string(i), group);
    group.read("options", options);
    optimizer.param_groups()[i].options().serialize(options);
  }
}

inline void load_optimizer(const std::string& path, torch::optim::Optimizer& optimizer, const torch::Tensor& bytes) {
  std::istringstream stream(
      std::string(static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())));
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer.load(archive);
    load_options(optimizer, archive);
  } catch (const c10::Error& error) {
    throw Error(Errc::protocol, "the optimizer cannot take the state in the checkpoint " + path + ": " +
                                    error.what_without_backtrace() + "; give it the parameters that it was saved with");
  }
}

inline void take_position(const std::string& path, SamplerPosition& position, const torch::Tensor& numbers) {
  const torch::Tensor mine = numbers_of(position);
  static constexpr std::array<const char*, 6> names{"epoch", "step", "dataset_size", "global_batch", "seed", "shuffle"};
  for (std::int64_t i = 2; i < 6; ++i) {
    const auto saved = numbers.data_ptr<std::int64_t>()[i];
    const auto present = mine.data_ptr<std::int64_t>()[i];
    if (saved == present) continue;
    throw Error(Errc::invalid_argument, "the checkpoint " + path + " is of a sampler with " +
                                            names[static_cast<std::size_t>(i)] + " " + std::to_string(saved) +
                                            ", the program's has " + std::to_string(present) +
                                            "; go on with the same samples, or name another file");
  }
  position.epoch = static_cast<std::uint64_t>(numbers.data_ptr<std::int64_t>()[0]);
  position.step = static_cast<std::size_t>(numbers.data_ptr<std::int64_t>()[1]);
}

/// Collective, blocking. @returns the file's tensors; none on ranks other than 0
template <class Group>
TrainingTensors collect_training(const Group& group, const Modules& modules, const torch::optim::Optimizer& optimizer,
                                 const SamplerPosition& position, const torch::Generator& rng) {
  const torch::Tensor generators = all_generators(group, rng, device_of(modules));
  if (group.rank() != 0) {
    return {};
  }
  std::ostringstream state;
  torch::save(optimizer, state);
  return training_tensors(modules, optimizer, bytes_tensor(state.str()), numbers_of(position), generators);
}

/// Collective, blocking. @param load `load(tensors)` reads the file to `tensors` @returns false if there is no file
template <class Group, class Load>
bool load_training(const Group& group, const std::string& path, const Modules& modules,
                   torch::optim::Optimizer& optimizer, SamplerPosition& position, const torch::Generator& rng,
                   Load load) {
  std::array<std::int64_t, 3> extents{};
  const auto read = [&] { return read_extents(path, extents); };
  if (!ddp::detail::run_on_rank0_blocking(group, "reading the checkpoint " + path, read)) {
    return false;
  }
  torch::Tensor shared = torch::tensor({extents[0], extents[1], extents[2]}, torch::kInt64).to(device_of(modules));
  broadcast_tensors(group, {shared});
  shared = shared.cpu();
  const auto* extent = shared.data_ptr<std::int64_t>();
  const torch::Tensor bytes = torch::empty({extent[0]}, torch::kUInt8);
  const torch::Tensor numbers = torch::empty({6}, torch::kInt64);
  const torch::Tensor generators = torch::empty({extent[1], extent[2]}, torch::kUInt8);
  const TrainingTensors tensors = training_tensors(modules, optimizer, bytes, numbers, generators);
  if (!load(tensors.list)) {
    return false;
  }
  for (const SavedTensor& saved : tensors.saved) {
    if (saved.contiguous.data_ptr() != saved.target.data_ptr()) {
      torch::Tensor(saved.target).copy_(saved.contiguous);
    }
  }
  load_optimizer(path, optimizer, bytes);
  take_position(path, position, numbers);
  if (extent[1] == group.world_size()) {
    set_state(rng, generators[group.rank()]);
  } else if (group.rank() == 0) {
    log(LogLevel::warning, "the checkpoint " + path + " has the random numbers of " + std::to_string(extent[1]) +
                               " ranks and the group has " + std::to_string(group.world_size()) +
                               ": generators stay as they are");
  }
  return true;
}

}  // namespace detail

/// Writes a file from which a training continues with the same bits. The file has rank 0's parameters and buffers, the
/// optimizer's state and options, `position`, and every rank's random numbers, `rng`.
/// Tensors of the file, a dtrain checkpoint (ddp/checkpoint/checkpoint_file.hpp), in this order:
/// - `net.NAME`: each parameter, then each buffer, in the order of indices. Complex elements are pairs; 8- and 16-bit
///   integers are bytes named `net.NAME (Char)` or `(Short)`; more than 8 dimensions become one.
/// - `optimizer (CLASS)`, u8 [bytes]: the bytes that torch::save writes.
/// - `sampler`, i64 [6]: epoch, step, dataset_size, global_batch, seed, shuffle.
/// - `rng`, u8 [ranks, bytes]: get_state() of each rank's generator.
///
/// @param net as DistributedDataParallel's, before or after wrapping. Collective, blocking, atomic, and
/// @throws as save_checkpoint of tensors.
/// @ingroup libtorch
template <class Group, class Net>
void save_checkpoint(const Group& group, const std::string& path, const Net& net,
                     const torch::optim::Optimizer& optimizer, const SamplerPosition& position,
                     const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  const detail::TrainingTensors tensors =
      detail::collect_training(group, detail::modules_of(net), optimizer, position, rng);
  ddp::save_checkpoint(group, path, tensors.list);
}

/// Loads the file of save_checkpoint on every rank. With another number of ranks, `rng` stays as it is, and rank 0 logs
/// a warning. Collective, blocking: as load_checkpoint of tensors. @returns false on every rank if rank 0 has no such
/// file
/// @throws as load_checkpoint of tensors, also for an optimizer of another class; Error (invalid_argument) if the
/// sampler has other options, and (protocol) if the optimizer has other parameters; these errors come after the modules
/// are loaded
/// @ingroup libtorch
template <class Group, class Net>
bool load_checkpoint(const Group& group, const std::string& path, const Net& net, torch::optim::Optimizer& optimizer,
                     SamplerPosition& position, const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  return detail::load_training(
      group, path, detail::modules_of(net), optimizer, position, rng,
      [&](const std::vector<NamedTensor>& tensors) { return ddp::load_checkpoint(group, path, tensors); });
}

/// Saves a training, as save_checkpoint of a LibTorch optimizer, with the optimizer's state in shard files. The file
/// has the optimizer's options. Each rank writes one shard file; the files are named and committed as by
/// save_checkpoint of a dtrain::ShardedOptimizer. A further tensor of the file follows `rng`: `updates`, i64
/// [parameters], the number of updates of each parameter that needs gradients.
/// @ingroup libtorch
template <class Group, class Net, class O, class C, class Stage>
void save_checkpoint(const Group& group, const std::string& path, const Net& net,
                     ShardedOptimizer<O, C, Stage>& optimizer, const SamplerPosition& position,
                     const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  detail::TrainingTensors tensors =
      detail::collect_training(group, detail::modules_of(net), optimizer.options(), position, rng);
  std::vector<std::int64_t> updates = optimizer.updates();
  tensors.list.push_back({"updates", tensor_view(updates)});
  ddp::save_checkpoint(group, path, tensors.list, optimizer.sharded());
}

/// Loads a training, as load_checkpoint of a LibTorch optimizer; any number of ranks may have saved it. Call it after
/// the construction of `optimizer`. @throws as load_checkpoint of a LibTorch optimizer and of a
/// dtrain::ShardedOptimizer
/// @ingroup libtorch
template <class Group, class Net, class O, class C, class Stage>
bool load_checkpoint(const Group& group, const std::string& path, const Net& net,
                     ShardedOptimizer<O, C, Stage>& optimizer, SamplerPosition& position,
                     const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> updates = optimizer.updates();
  const auto load = [&](std::vector<NamedTensor> tensors) {
    tensors.push_back({"updates", tensor_view(updates)});
    return ddp::load_checkpoint(group, path, tensors, optimizer.sharded());
  };
  if (!detail::load_training(group, path, detail::modules_of(net), optimizer.options(), position, rng, load)) {
    return false;
  }
  optimizer.set_updates(updates);
  return true;
}

}  // namespace DTRAIN_NAMESPACE::libtorch

namespace DTRAIN_NAMESPACE {
using libtorch::load_checkpoint;
using libtorch::save_checkpoint;
}  // namespace DTRAIN_NAMESPACE
