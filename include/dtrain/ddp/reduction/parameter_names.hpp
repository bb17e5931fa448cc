#pragma once
/// @file
/// Parameter names: descriptions of a model's parameters for error sentences.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Threads: concurrently.
class ParameterNames {
 public:
  explicit ParameterNames(std::span<const Parameter> parameters) {
    for (const Parameter& parameter : parameters) {
      names_.push_back(parameter.name);
    }
  }

  std::size_t size() const noexcept { return names_.size(); }

  /// @throws Error (invalid_argument): the index is out of range
  [[noreturn]] void refuse_index(std::size_t parameter) const {
    throw Error(Errc::invalid_argument, "ready(" + std::to_string(parameter) + ") was called, but the model has " +
                                            std::to_string(size()) + " parameters; pass an index into parameters()");
  }

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const { return describe_parameter(parameter, names_[parameter]); }

  /// "ready(3) for parameter 3 'fc1.weight'".
  std::string describe_ready(std::size_t parameter) const {
    return "ready(" + std::to_string(parameter) + ") for " + describe(parameter);
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
