#pragma once
/// @file
/// Slurm host list: parser of compressed lists such as "node[001-003,007],gpu-a"; returns the first host.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/formats/host_name.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

inline bool is_digit(char byte) noexcept {
  return byte >= '0' && byte <= '9';
}

/// Reads a list from its beginning to its end. Each function consumes the element that it is named after, or throws.
class HostListReader {
 public:
  HostListReader(std::string_view variable, std::string_view list) noexcept : variable_(variable), list_(list) {}

  std::string first_host() {
    std::string first = host();
    while (at_ != list_.size()) {
      take(',', "a comma between hosts");
      host();
    }
    return first;
  }

 private:
  /// One entry, with any number of brackets. @returns its first host
  std::string host() {
    std::string name;
    while (at_ != list_.size() && peek() != ',') {
      if (peek() == '[') {
        name += ranges();
      } else if (is_host_name_byte(peek())) {
        name += list_[at_++];
      } else {
        fail("a byte that no host's name has");
      }
    }
    if (name.empty()) {
      fail("an empty name");
    }
    return name;
  }

  std::string ranges() {
    take('[', "a '['");
    std::string first = range();
    while (peek() == ',') {
      ++at_;
      range();
    }
    take(']', "a ']'");
    return first;
  }

  /// "7", or "001-003". @returns the first number, with leading zeros
  std::string range() {
    const std::string_view low = digits();
    if (peek() == '-') {
      ++at_;
      if (is_less(digits(), low)) {
        fail("a range that runs backwards");
      }
    }
    return std::string(low);
  }

  std::string_view digits() {
    const std::size_t begin = at_;
    while (is_digit(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("no number where one belongs");
    }
    return list_.substr(begin, at_ - begin);
  }

  /// Compares decimal numbers of any length; ignores leading zeros.
  static bool is_less(std::string_view a, std::string_view b) noexcept {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }

  char peek() const noexcept { return at_ < list_.size() ? list_[at_] : '\0'; }

  void take(char wanted, const char* what) {
    if (peek() != wanted || at_ == list_.size()) {
      fail((std::string("not ") + what).c_str());
    }
    ++at_;
  }

  [[noreturn]] void fail(const char* what) const {
    throw IdentityError(IdentityErrc::bad_hostlist, quoted(variable_, list_) + " is not a Slurm host list: at byte " +
                                                        std::to_string(at_) + " there is " + what +
                                                        "; correct it, or set MASTER_ADDR to the host of rank 0");
  }

  std::string_view variable_;
  std::string_view list_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// The first host of `list`, the value of `variable`. The list need not be sorted; zero padding is kept.
/// Example: "node[001-003,007],gpu-a" gives "node001".
/// @throws IdentityError (bad-hostlist) if any entry of the list is invalid
inline std::string first_slurm_host(std::string_view variable, std::string_view list) {
  return detail::HostListReader(variable, list).first_host();
}

}  // namespace DTRAIN_NAMESPACE::identity
