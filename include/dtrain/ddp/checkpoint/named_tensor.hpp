#pragma once
/// @file
/// NamedTensor: a named tensor of the training state, for checkpoints. NamedBytes: bytes of any length. TensorAccess: a
/// tensor's elements, on host or device.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// One tensor of the training state: a parameter, an optimizer's velocity, the number of steps done.
/// Lifetime: the memory outlives the call that gets it.
/// @ingroup checkpoints
struct NamedTensor {
  std::string name;
  TensorView value;
  std::string* bytes = nullptr;  ///< NamedBytes, in place of `value`

  /// Further names of a shared tensor. A file has the tensor once: one that is written has it by `name`, and the others
  /// in its metadata, as `{other name: name}`; one that is read has it by any of the names.
  std::vector<std::string> other_names{};

  /// The type in files of elements without a DType: "BOOL", "I8", "I16", "U16", "C64"; empty: the DType's. Then `value`
  /// is u8, and its last extent is the bytes of an element, which the shape in files does not have.
  std::string_view file_type{};

  /// The view of the elements: `value`, or the bytes as they are now.
  TensorView present() const {
    return bytes == nullptr ? value : tensor_view(reinterpret_cast<std::uint8_t*>(bytes->data()), {bytes->size()});
  }
};

/// Bytes of the training state whose number may change, for example a library's serialised solver:
/// `state.push_back(dtrain::NamedBytes{"solver", bytes})`. Loading resizes the string; the file has a tensor of u8. An
/// elastic job does not keep them. Lifetime: the string outlives the calls that get the state.
/// @ingroup checkpoints
struct NamedBytes {
  std::string name;
  std::string& bytes;

  operator NamedTensor() const { return {name, {nullptr, {0}, DType::u8, {}}, &bytes}; }
};

/// The most bytes of a NamedBytes that are written or read.
inline constexpr std::size_t max_named_bytes = std::size_t{1} << 32;

/// The values of a model's parameters, with their names. Gradients are not included: every step computes them anew.
/// @ingroup checkpoints
std::vector<NamedTensor> parameter_values(std::span<const Parameter> parameters);

/// Names, shapes and types of the tensors, for comparison between ranks and with files.
/// @param on_devices whether device memory is allowed
/// @throws Error (unsupported) if device memory is not allowed; (invalid_argument) for a name that is too long, or a
/// tensor without memory
std::vector<ParameterSignature> tensor_signatures(std::span<const NamedTensor> tensors, bool on_devices = false,
                                                  std::size_t most_name_bytes = max_parameter_name_bytes);

/// How a checkpoint reads and writes the elements of a tensor. In this class elements are in host memory, and are read
/// and written in place.
class TensorAccess {
 public:
  TensorAccess() = default;
  TensorAccess(TensorAccess&&) = default;
  virtual ~TensorAccess() = default;

  virtual bool takes_device_memory() const noexcept { return false; }

  /// The tensor's elements.
  virtual std::span<const std::byte> fetch(const TensorView& tensor) { return TensorAccess::place(tensor); }

  /// The memory into which the caller writes the elements; `put` then stores them in the tensor.
  virtual std::span<std::byte> place(const TensorView& tensor) { return {tensor.data, tensor.bytes()}; }
  virtual void put(const TensorView&) {}
};

#if DTRAIN_WITH_CUDA

/// Elements on the stream's device are copied through host memory, one tensor at a time; host memory is accessed in
/// place. The result of fetch or place is valid until the next call of either. Blocking: the copies. Threads: one.
class DeviceTensorAccess final : public TensorAccess {
 public:
  DeviceTensorAccess(stream::cuda::StreamRef stream, std::chrono::nanoseconds timeout)
      : stream_(stream), timeout_(timeout) {}

  bool takes_device_memory() const noexcept override { return true; }

  /// @throws Error (unsupported) for a tensor of another device, (timeout), (cuda)
  std::span<const std::byte> fetch(const TensorView& tensor) override {
    const std::span<std::byte> copy = place(tensor);
    if (copy.data() != tensor.data) {
      copy_blocking(copy.data(), tensor.data, copy.size(), cudaMemcpyDeviceToHost);
    }
    return copy;
  }

  /// @throws Error (unsupported) for a tensor of another device
  std::span<std::byte> place(const TensorView& tensor) override {
    if (tensor.device.kind == DeviceKind::host || tensor.bytes() == 0) {
      return TensorAccess::place(tensor);
    }
    if (tensor.device != stream_.device()) {
      throw_error(
          Errc::unsupported,
          "a tensor of a checkpoint is on {}, but this rank's group is on {}; give it from there, or from the host",
          {to_string(tensor.device), to_string(stream_.device())});
    }
    memory_.resize(std::max(memory_.size(), tensor.bytes()));
    return std::span(memory_).first(tensor.bytes());
  }

  /// @throws as fetch
  void put(const TensorView& tensor) override {
    if (const std::span<std::byte> written = place(tensor); written.data() != tensor.data) {
      copy_blocking(tensor.data, written.data(), written.size(), cudaMemcpyHostToDevice);
    }
  }

 private:
  /// A copy of pageable memory blocks without a deadline until the stream's earlier work has run, so that work is
  /// waited for first. The host memory is not used after the call returns, even if the copy is abandoned.
  void copy_blocking(std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind) {
    block_until_done();
    stream::cuda::check(cudaMemcpyAsync(to, from, bytes, kind, stream_.native()), "cudaMemcpyAsync");
    block_until_done();
  }

  void block_until_done() {
    stream::cuda::Event done;
    stream_.record(done);
    if (done.block_until_complete(Deadline::after(timeout_)) != stream::WaitResult::complete) {
      throw_error(Errc::timeout, "copying a tensor of a checkpoint between host and device took too long");
    }
  }

  stream::cuda::StreamRef stream_;
  std::chrono::nanoseconds timeout_;
  std::vector<std::byte> memory_;  ///< memory as large as the largest tensor so far
};

#endif  // DTRAIN_WITH_CUDA

namespace detail {

template <class Stream>
TensorAccess access_on(Stream, std::chrono::nanoseconds) noexcept {
  return {};
}
#if DTRAIN_WITH_CUDA
inline DeviceTensorAccess access_on(stream::cuda::StreamRef stream, std::chrono::nanoseconds timeout) {
  return {stream, timeout};
}
#endif

}  // namespace detail

/// The access for tensors of a group: on the host, or on the device of the group's stream.
template <class Group>
auto tensor_access(const Group& group) {
  return detail::access_on(group.stream(), group.timeout());
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<NamedTensor> parameter_values(std::span<const Parameter> parameters) {
  std::vector<NamedTensor> values;
  values.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    values.push_back({parameter.name, parameter.value});
  }
  return values;
}

DTRAIN_DEFINED std::vector<ParameterSignature> tensor_signatures(std::span<const NamedTensor> tensors, bool on_devices,
                                                                 std::size_t most_name_bytes) {
  std::vector<ParameterSignature> signatures;
  signatures.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name.size() > most_name_bytes) {
      throw_error(Errc::invalid_argument, "the name of tensor {} of a checkpoint has {} bytes; at most {} are possible",
                  {signatures.size(), tensor.name.size(), most_name_bytes});
    }
    const TensorView value = tensor.present();
    if (tensor.bytes != nullptr && value.bytes() > max_named_bytes) {
      throw_error(Errc::limit, "NamedBytes {} of a checkpoint have {} bytes; at most {} are possible",
                  {signatures.size(), value.bytes(), max_named_bytes});
    }
    if (!on_devices && value.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported, "tensor {} of a checkpoint is on {}; copy it to host memory and give that",
                  {signatures.size(), to_string(value.device)});
    }
    if (value.data == nullptr && value.bytes() != 0) {
      throw_error(Errc::invalid_argument, "tensor {} of a checkpoint has no memory; allocate it before",
                  {signatures.size()});
    }
    signatures.push_back({tensor.name, value.shape, value.dtype, DeviceKind::host});
  }
  return signatures;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::NamedBytes;
using ddp::NamedTensor;
using ddp::parameter_values;
}  // namespace DTRAIN_NAMESPACE
