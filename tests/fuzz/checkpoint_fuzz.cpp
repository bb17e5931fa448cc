// A checkpoint file from anywhere: what is read is what would be written, and nothing else is believed.

#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"

#include "fuzz/fuzz.hpp"

namespace ddp = dtrain::ddp;

namespace {

/// A file without a name, with `bytes` in it; closed by the destructor of what owns it.
dtrain::Descriptor file_of(std::string_view bytes) {
  dtrain::Descriptor file(::memfd_create("checkpoint", MFD_CLOEXEC));
  fuzz::require(static_cast<bool>(file), "a file in memory can be had");
  fuzz::require(::pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
                "a file in memory can be written");
  return file;
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A whole file: a vector, a scalar and an empty tensor.
std::string good_file() {
  const std::vector<dtrain::ddp::ParameterSignature> tensors{
      {"weights", {3}, dtrain::DType::f32, dtrain::DeviceKind::host},
      {"steps", {}, dtrain::DType::i64, dtrain::DeviceKind::host},
      {"nothing", {0, 2}, dtrain::DType::u8, dtrain::DeviceKind::host}};
  std::string bytes = as_text(ddp::checkpoint_header(tensors)) + std::string(20, 'v');
  return bytes + as_text(dtrain::Sha256().update(bytes).digest());
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string good = good_file();
  const std::string empty = as_text(ddp::checkpoint_header({}));
  return {good, empty + as_text(dtrain::Sha256().update(empty).digest()), good.substr(0, 30), "dtrain checkpoint 2\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(fuzz::text_of(data, size));
  // A digest that fits lets the search come further than the last check.
  if (bytes.size() > 32 && bytes.back() != '!') {
    bytes.resize(bytes.size() - 32);
    bytes += as_text(dtrain::Sha256().update(bytes).digest());
  }
  const dtrain::Descriptor file = file_of(bytes);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  try {
    const std::vector<ddp::ParameterSignature> found = ddp::read_checkpoint_list(path).value();
    fuzz::require(bytes.starts_with(as_text(ddp::checkpoint_header(found))), "a list that is read is as it is written");
    const std::optional<std::uint64_t> elements = ddp::element_bytes(found, bytes.size());
    fuzz::require(elements && ddp::checkpoint_header(found).size() + *elements + 32 == bytes.size(),
                  "a file has room for its elements, and no more");
    std::vector<std::byte> memory(*elements);
    std::vector<dtrain::NamedTensor> tensors;
    std::size_t offset = 0;
    for (const ddp::ParameterSignature& tensor : found) {
      tensors.push_back({tensor.name, {memory.data() + offset, tensor.shape, tensor.dtype, {}}});
      offset += tensors.back().value.bytes();
    }
    fuzz::require(ddp::read_checkpoint_file(path, tensors), "a file that is there is read");
    fuzz::require(bytes.substr(bytes.size() - 32 - offset, offset) == as_text(memory),
                  "elements are read as they stand");
  } catch (const dtrain::Error& error) {
    fuzz::require_sentence(error.what());
  }
  return 0;
}
