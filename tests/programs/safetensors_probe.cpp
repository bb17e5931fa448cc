// Writes safetensors files of random lists, and reads those of other programs; tests/support/safetensors_peer.py, which
// tests/integration/safetensors_test.cpp starts, has the other side. The bytes of a tensor follow from its name.
//   safetensors_probe write FOLDER LISTS
//   safetensors_probe read FOLDER LISTS    (exit code 1: a tensor has other bytes)
#include "programs/prelude.hpp"

#include <filesystem>
#include <map>
#include <random>

#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

namespace {

using List = std::map<std::string, std::string>;  ///< bytes by name

/// Byte k of a tensor is the sum of its name's bytes and 7 k, modulo 256.
std::string bytes_of(const std::string& name, std::size_t count) {
  unsigned sum = 0;
  for (const char byte : name)
    sum += static_cast<unsigned char>(byte);
  std::string bytes(count, '\0');
  for (std::size_t k = 0; k < count; ++k)
    bytes[k] = static_cast<char>((sum + 7 * k) % 256);
  return bytes;
}

dtrain::NamedTensor tensor(const std::string& name, std::string& bytes, const dtrain::Shape& shape,
                           dtrain::DType type) {
  return {name, {reinterpret_cast<std::byte*>(bytes.data()), shape, type, {}}};
}

void write(const std::string& path, std::mt19937& random) {
  const std::vector<std::string> parts{
      "a", "weight", ".", "\"", "\\", "\n", std::string(1, '\0'), "\xc3\xa9", "\x7f", "\xf0\x9f\x98\x80", "/", "0"};
  List list;
  std::vector<dtrain::NamedTensor> tensors;
  for (std::size_t i = random() % 9; i > 0; --i) {
    std::string name;
    for (std::size_t k = random() % 6; k > 0; --k)
      name += parts[random() % parts.size()];
    std::vector<std::int64_t> extents(random() % 6);
    for (std::int64_t& extent : extents)
      extent = static_cast<std::int64_t>(random() % 5);
    const dtrain::Shape shape(extents);
    const auto type = static_cast<dtrain::DType>(1 + random() % 9);
    const auto [entry, is_new] = list.emplace(name, bytes_of(name, shape.element_count() * dtrain::size_bytes(type)));
    if (is_new) tensors.push_back(tensor(name, entry->second, shape, type));
  }
  dtrain::ddp::write_checkpoint_file(path, tensors);
}

bool read(const std::string& path) {
  List list;
  std::vector<dtrain::NamedTensor> tensors;
  const auto found = dtrain::ddp::read_checkpoint_list(path).value();
  for (const dtrain::ddp::FileTensor& each : found) {
    std::string& bytes = list[each.name];
    bytes.resize(each.end - each.begin);
    tensors.push_back(tensor(each.name, bytes, *each.shape, *each.dtype));
  }
  if (!dtrain::ddp::read_checkpoint_file(path, tensors)) return false;
  return std::all_of(list.begin(), list.end(),
                     [](const auto& each) { return each.second == bytes_of(each.first, each.second.size()); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string folder = argv[2];
  std::mt19937 random(2027);
  try {
    for (int i = 0; i < std::atoi(argv[3]); ++i) {
      const std::string path = folder + "/" + std::to_string(i) + ".safetensors";
      if (argv[1] == std::string("write")) {
        write(path, random);
      } else if (!read(path)) {
        std::printf("%s has other bytes\n", path.c_str());
        return 1;
      }
    }
  } catch (const dtrain::Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
