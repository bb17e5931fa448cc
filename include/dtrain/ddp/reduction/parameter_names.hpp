#pragma once
/// @file
/// Parameter names: descriptions of a model's parameters for error sentences.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/source_location.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Threads: concurrently.
class ParameterNames {
 public:
  explicit ParameterNames(std::span<const Parameter> parameters);

  std::size_t size() const noexcept { return names_.size(); }

  /// @throws Error (invalid_argument): the index is out of range
  [[noreturn]] void refuse_index(std::size_t parameter, const char* call = "ready") const;

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const;

  /// @throws Error: "ready(3) for parameter 3 'fc1.weight' " and the problem
  [[noreturn]] void refuse_ready(std::size_t parameter, std::string_view problem, Errc code = Errc::invalid_argument,
                                 SourceLocation where = SourceLocation::current()) const;

 private:
  std::vector<std::string> names_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED ParameterNames::ParameterNames(std::span<const Parameter> parameters) {
  for (const Parameter& parameter : parameters) {
    names_.push_back(parameter.name);
  }
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void ParameterNames::refuse_index(std::size_t parameter, const char* call) const {
  throw_error(Errc::invalid_argument,
              "{}({}) was called, but the model has {} parameters; pass an index into parameters()",
              {call, parameter, size()});
}

DTRAIN_DEFINED std::string ParameterNames::describe(std::size_t parameter) const {
  return describe_parameter(parameter, names_[parameter]);
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void ParameterNames::refuse_ready(std::size_t parameter, std::string_view problem,
                                                                    Errc code, SourceLocation where) const {
  throw_error(code, "ready({}) for {} {}", {parameter, describe(parameter), problem}, where);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
