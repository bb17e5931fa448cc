// A safetensors file from anywhere: what is read is what would be written, and nothing else is believed.

#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

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

std::string with_length(const std::string& header) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header;
}

/// A whole file of dtrain's: a vector, a scalar and an empty tensor.
std::string good_file() {
  const std::vector<ddp::ParameterSignature> tensors{{"weights", {3}, dtrain::DType::f32, {}},
                                                     {"steps", {}, dtrain::DType::i64, {}},
                                                     {"nothing", {0, 2}, dtrain::DType::u8, {}}};
  const std::vector<ddp::FileTensor> list = ddp::file_tensors(tensors);
  std::string bytes = ddp::safetensors_header(list, ddp::safetensors_order(list)) + std::string(20, 'v');
  const std::string digest = dtrain::hex(dtrain::Sha256().update(bytes).digest());
  return bytes.replace(ddp::digest_position, 64, digest);
}

/// The tensors of a file that dtrain has the type and the shape of, with their bytes there.
std::vector<std::pair<ddp::ParameterSignature, std::string>> known(const std::vector<ddp::FileTensor>& list,
                                                                   std::string_view elements) {
  std::vector<std::pair<ddp::ParameterSignature, std::string>> tensors;
  for (const ddp::FileTensor& tensor : list) {
    fuzz::require(tensor.begin <= tensor.end && tensor.end <= elements.size(), "a tensor's bytes are in the file");
    if (!tensor.dtype || !tensor.shape || tensor.name.size() > ddp::max_parameter_name_bytes) continue;
    tensors.push_back({{tensor.name, *tensor.shape, *tensor.dtype, {}},
                       std::string(elements.substr(tensor.begin, tensor.end - tensor.begin))});
  }
  return tensors;
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string good = good_file();
  return {
      good,
      good.substr(0, 30),
      "dtrain checkpoint 2\n",
      with_length("{}"),
      with_length(R"( {"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"data_offsets":[8,8],"shape":[0],)"
                  R"("dtype":"BOOL","x":[1.5e3,null,{"y":"\ud83d\ude00"}]}} )") +
          "12345678",
      with_length(R"({"__metadata__":{"format":"pt","DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[3]}}"},)"
                  R"("a":{"dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[0,0]}})")};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(fuzz::text_of(data, size));
  // A length that fits lets the search come further than the first check, and '0's are a digest that never fits.
  if (bytes.size() > 8 && bytes.back() != '!') {
    const std::size_t end = bytes.rfind('}');
    const std::string header = end == std::string::npos || end < 8 ? std::string() : bytes.substr(8, end - 7);
    if (!header.empty()) bytes = with_length(header) + bytes.substr(end + 1);
  }
  const dtrain::Descriptor file = file_of(bytes);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  try {
    const std::vector<ddp::FileTensor> list = ddp::read_checkpoint_list(path).value();
    std::uint64_t length = 0;
    bytes.copy(reinterpret_cast<char*>(&length), sizeof(length));
    const std::string_view elements = std::string_view(bytes).substr(sizeof(length) + length);
    auto expected = known(list, elements);
    std::vector<std::string> memory(expected.size());
    std::vector<dtrain::NamedTensor> tensors;
    std::vector<ddp::ParameterSignature> signatures;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto& [signature, content] = expected[i];
      memory[i].resize(content.size());
      tensors.push_back(
          {signature.name, {reinterpret_cast<std::byte*>(memory[i].data()), signature.shape, signature.dtype, {}}});
      signatures.push_back(signature);
    }
    const std::vector<ddp::FileTensor> written = ddp::file_tensors(signatures);
    const std::string header = ddp::safetensors_header(written, ddp::safetensors_order(written));
    ddp::SafetensorsHeader again;
    fuzz::require(ddp::parse_safetensors(std::string_view(header).substr(sizeof(length)), again).empty(),
                  "a list that is read can be written");
    fuzz::require(again.tensors.size() == signatures.size(), "and has the same tensors");
    const ddp::SafetensorsOptions options{.extra = true};
    fuzz::require(ddp::read_checkpoint_file(path, tensors, {}, &options).has_value(), "a file that is there is read");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      fuzz::require(memory[i] == expected[i].second, "elements are read as they stand");
    }
  } catch (const dtrain::Error& error) {
    fuzz::require_sentence(error.what());
  }
  return 0;
}
