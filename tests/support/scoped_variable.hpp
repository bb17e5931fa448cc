#pragma once
/// @file
/// ScopedVariable: a variable of this process's environment, for a scope.

#include <cstdlib>
#include <optional>
#include <string>

namespace support {

/// Sets the variable, or unsets it. No other thread reads the environment meanwhile.
class ScopedVariable {
 public:
  explicit ScopedVariable(const char* name, const char* value = nullptr) : name_(name) {
    const char* const before = std::getenv(name);
    if (before != nullptr) before_ = before;
    set(value);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() { set(before_ ? before_->c_str() : nullptr); }

  void set(const char* value) { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }
  std::string text() const {
    const char* const value = std::getenv(name_);
    return value != nullptr ? value : "not set";
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace support
