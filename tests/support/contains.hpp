#pragma once
// Whether a text has a part.

#include <string>

namespace support {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace support
