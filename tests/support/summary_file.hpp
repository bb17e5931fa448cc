#pragma once
/// @file
/// What a training program wrote to --summary=FILE, by field.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace support {

inline std::string file_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A flat JSON object with one field a line.
class SummaryFile {
 public:
  explicit SummaryFile(const std::string& path) : text_(file_content(path)) {
    if (text_.empty()) throw std::runtime_error("no summary in " + path);
  }

  /// What stands behind `"field": `, without the comma and quotes.
  std::string text(const std::string& field) const {
    const std::string key = '"' + field + "\": ";
    const std::size_t begin = text_.find(key);
    if (begin == std::string::npos) throw std::runtime_error("no field " + field + " in a summary");
    std::string value = text_.substr(begin + key.size(), text_.find('\n', begin) - begin - key.size());
    if (!value.empty() && value.back() == ',') {
      value.pop_back();
    }
    return value.size() > 1 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
  }
  double number(const std::string& field) const { return std::strtod(text(field).c_str(), nullptr); }

 private:
  std::string text_;
};

}  // namespace support
