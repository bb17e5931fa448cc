#pragma once
/// @file
/// Optimizer tensors: the state and the options of a LibTorch optimizer as a checkpoint has them, by PyTorch's names.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/optimizer_state.hpp"

namespace DTRAIN_NAMESPACE::libtorch::detail {

/// Beginning of the names of a checkpoint's tensors that are in no module.
inline const std::string own_prefix = "dtrain.";

/// "dtrain.optimizer" of the first optimizer, "dtrain.optimizer1" of the second.
inline std::string numbered_name(const std::string& kind, std::size_t index) {
  return own_prefix + kind + (index == 0 ? "" : std::to_string(index));
}

/// An optimizer of a checkpoint, and the names of its tensors there. Lifetime: the optimizer outlives it.
class SavedOptimizer {
 public:
  /// @param index among the checkpoint's optimizers
  SavedOptimizer(torch::optim::Optimizer& optimizer, std::size_t index, const Modules& modules)
      : optimizer_(&optimizer), prefix_(numbered_name("optimizer", index) + ".") {
    for (const ModuleTensor& parameter : parameters_of(modules))
      name_of_.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
    if_state_known(optimizer, [&]<class O>(StateOf<O>) { has_names_ = typeid(*optimizer_) == typeid(O); });
  }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  /// Whether the file has a tensor for each array and option. Others are one tensor of the bytes that torch::save
  /// writes, also a class derived from one of LibTorch's, which may have more state.
  bool has_names() const { return has_names_; }

  /// Names of all tensors that the file may have of the state: of each parameter's arrays and counters, in one order;
  /// or the name of the bytes.
  std::vector<std::string> state_names() const {
    if (!has_names_) return {prefix_ + class_of(*optimizer_)};
    std::vector<std::string> names;
    for_each_parameter([&](auto of, const std::string& name, const torch::Tensor&, auto&) {
      typename decltype(of)::State state;
      of.state(state, [&](const char* member, auto&) { names.push_back(state_name(name, member)); });
    });
    return names;
  }

  /// The tensors to write; numbers are copies. @throws Error (unsupported) for another class that cannot be saved
  std::vector<ModuleTensor> present_tensors() const {
    if (!has_names_) return {{state_names().front(), saved_bytes()}};
    std::vector<ModuleTensor> tensors;
    for_each_parameter([&](auto of, const std::string& name, const torch::Tensor& parameter, auto& options) {
      add_options(of, name, options, tensors);
      auto* const state = find_state<decltype(of)>(*optimizer_, parameter);
      if (state == nullptr) return;
      of.state(*state, [&](const char* member, auto& value) {
        if constexpr (is_array<decltype(value)>) {
          if (value.defined()) tensors.push_back({state_name(name, member), value.detach()});
        } else {
          tensors.push_back({state_name(name, member), torch::tensor(value, torch::kInt64)});
        }
      });
    });
    return tensors;
  }

  /// Memory for the tensors of a file. @param in_file by state_names(): 1 if the file has the tensor, or the number of
  /// bytes
  std::vector<ModuleTensor> empty_tensors(const std::vector<std::int64_t>& in_file) const {
    if (!has_names_) return {{state_names().front(), torch::empty({in_file.front()}, torch::kUInt8)}};
    std::vector<ModuleTensor> tensors;
    auto is_present = in_file.begin();
    for_each_parameter([&](auto of, const std::string& name, const torch::Tensor& parameter, auto& options) {
      add_options(of, name, options, tensors);
      typename decltype(of)::State state;
      of.state(state, [&](const char* member, auto& value) {
        if (*is_present++ == 0) return;
        tensors.push_back({state_name(name, member), is_array<decltype(value)>
                                                         ? torch::empty(parameter.sizes(), parameter.options())
                                                         : torch::empty({}, torch::kInt64)});
      });
    });
    return tensors;
  }

  /// Gives the optimizer the options and the state of a file; a parameter without a state there has none afterwards.
  /// @param path of the file, for errors @param tensors of empty_tensors(in_file), after they were read
  /// @throws Error (protocol) for parameters of one group with different options, a negative counter, and bytes that
  /// the optimizer does not take
  void take(const std::string& path, const std::vector<ModuleTensor>& tensors,
            const std::vector<std::int64_t>& in_file) const {
    if (!has_names_) return take_bytes(path, tensors.front().tensor);
    auto next = tensors.begin();
    auto is_present = in_file.begin();
    const void* last_options = nullptr;
    for_each_parameter([&](auto of, const std::string& name, const torch::Tensor& parameter, auto& options) {
      using Of = decltype(of);
      const bool is_first = std::exchange(last_options, static_cast<const void*>(&options)) != &options;
      Of::options(options, [&](const char* option, auto&... values) {
        take_option(path, *next++, name, option, is_first, values...);
      });
      auto state = std::make_unique<typename Of::State>();
      bool has_state = false;
      Of::state(*state, [&](const char*, auto& value) {
        if (*is_present++ == 0) return;
        const torch::Tensor& from = (next++)->tensor;
        has_state = true;
        if constexpr (is_array<decltype(value)>) {
          value = torch::empty_like(parameter.detach(), torch::MemoryFormat::Preserve).copy_(from);
        } else {
          value = from.template item<std::int64_t>();
          if (value >= 0) return;
          throw Error(Errc::protocol, "the checkpoint " + path + " has a negative number of updates of parameter '" +
                                          name + "'; name another file");
        }
      });
      auto& states = optimizer_->state();
      const auto key = state_key_of(*optimizer_, parameter);
      // torch::optim::Adagrad's constructor makes the state of each parameter, and step() needs it.
      const bool begins = std::is_same_v<Of, StateOf<torch::optim::Adagrad>> && states.find(key) != states.end();
      states.erase(key);
      if (!has_state && !begins) return;
      Of::begin(*state, parameter, options);  // arrays that the file does not have
      states[key] = std::move(state);
    });
  }

 private:
  template <class Value>
  static constexpr bool is_array = std::is_same_v<Value, torch::Tensor&>;

  std::string state_name(const std::string& parameter, const char* member) const {
    return prefix_ + "state." + parameter + "." + member;
  }

  /// `act(of, name, parameter, options)` for each parameter once, in the order of the groups. One that is in no module
  /// has its number in place of a name: "(3)".
  template <class Act>
  void for_each_parameter(Act act) const {
    if_state_known(*optimizer_, [&](auto of) {
      std::unordered_set<const void*> seen;
      std::size_t number = 0;
      for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
        for (const torch::Tensor& parameter : group.params()) {
          const auto found = name_of_.find(parameter.unsafeGetTensorImpl());
          const std::string name = found == name_of_.end() ? "(" + std::to_string(number) + ")" : found->second;
          ++number;
          if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
          act(of, name, parameter, static_cast<typename decltype(of)::Options&>(group.options()));
        }
      }
    });
  }

  /// The options' present values: f64 and bool of no extent, and f64 [2].
  template <class Of, class Options>
  void add_options(Of, const std::string& name, Options& options, std::vector<ModuleTensor>& tensors) const {
    Of::options(options, [&]<class Value>(const char* option, Value& value, auto&... second) {
      const auto type = std::is_same_v<Value, bool> ? torch::kBool : torch::kFloat64;
      const torch::Tensor tensor = torch::tensor({value, second...}, type);
      tensors.push_back(
          {prefix_ + "param_groups." + name + "." + option, sizeof...(second) == 0 ? tensor.squeeze(0) : tensor});
    });
  }

  /// Reads an option of a group, or, after the group's first parameter, compares it.
  template <class... Values>
  static void take_option(const std::string& path, const ModuleTensor& read, const std::string& parameter,
                          const char* option, bool is_first, Values&... values) {
    std::int64_t i = 0;
    const auto take_one = [&]<class Value>(Value& value) {
      const auto given = read.tensor.flatten()[i++].template item<Value>();
      if (is_first) value = given;
      if (value == given) return;
      throw Error(Errc::protocol, "the checkpoint " + path + " has another " + option + " for parameter '" + parameter +
                                      "' than for the first one of its group; make the groups that it was saved with");
    };
    (take_one(values), ...);
  }

  torch::Tensor saved_bytes() const {
    std::ostringstream state;
    try {
      torch::save(*optimizer_, state);
    } catch (const c10::Error& error) {
      throw Error(Errc::unsupported, "the state of a " + class_of(*optimizer_) + " cannot be saved: " +
                                         error.what_without_backtrace() + "; leave this optimizer out");
    }
    const std::string bytes = state.str();
    const torch::Tensor made = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    bytes.copy(static_cast<char*>(made.data_ptr()), bytes.size());
    return made;
  }

  void take_bytes(const std::string& path, const torch::Tensor& bytes) const {
    std::istringstream stream(
        std::string(static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())));
    try {
      torch::serialize::InputArchive archive;
      archive.load_from(stream);
      optimizer_->state().clear();  // the state of parameters that the file does not have
      optimizer_->load(archive);
      take_options(archive);
    } catch (const c10::Error& error) {
      throw Error(Errc::protocol, "the optimizer cannot take the state in the checkpoint " + path + ": " +
                                      error.what_without_backtrace() +
                                      "; give it the parameters that it was saved with");
    }
  }

  /// LibTorch 1.13 and 2 load the state; not all of them load the options (the rate).
  void take_options(torch::serialize::InputArchive& archive) const {
    torch::serialize::InputArchive groups;
    archive.read("param_groups", groups);
    for (std::size_t i = 0; i < optimizer_->param_groups().size(); ++i) {
      torch::serialize::InputArchive group;
      torch::serialize::InputArchive options;
      groups.read("param_groups/" + std::to_string(i), group);
      group.read("options", options);
      optimizer_->param_groups()[i].options().serialize(options);
    }
  }

  torch::optim::Optimizer* optimizer_;
  std::string prefix_;
  std::unordered_map<const void*, std::string> name_of_;
  bool has_names_ = false;
};

}  // namespace DTRAIN_NAMESPACE::libtorch::detail
