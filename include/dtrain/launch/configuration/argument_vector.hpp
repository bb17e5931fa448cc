#pragma once
/// @file
/// Argument vector: an argv that owns its strings.

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Copies share the strings. The program may write to them, as to main's argv.
class ArgumentVector {
 public:
  ArgumentVector() : ArgumentVector(std::vector<std::string>{}) {}

  explicit ArgumentVector(std::vector<std::string> texts) : storage_(std::make_shared<Storage>()) {
    storage_->texts = std::move(texts);
    for (std::string& text : storage_->texts) {
      storage_->pointers.push_back(text.data());
    }
    storage_->pointers.push_back(nullptr);
  }

  /// argc and argv; argv[argc] is null. Lifetime: as long as a copy of this ArgumentVector lives.
  int count() const noexcept { return static_cast<int>(storage_->texts.size()); }
  char** pointers() const noexcept { return storage_->pointers.data(); }

  std::span<char* const> view() const noexcept { return {storage_->pointers.data(), storage_->texts.size()}; }

 private:
  struct Storage {
    std::vector<std::string> texts;
    std::vector<char*> pointers;
  };

  std::shared_ptr<Storage> storage_;
};

}  // namespace DTRAIN_NAMESPACE::launch
