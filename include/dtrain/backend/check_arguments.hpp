#pragma once
/// @file
/// Argument checks of collectives and messages at the call, common to all backends.

#include <cstddef>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

/// @throws Error: "all_reduce of 1024 f32" and the problem
[[noreturn]] void refuse_view(const char* operation, const ConstBufferView& view, const char* problem,
                              Errc code = Errc::invalid_argument);

void check_memory(const char* operation, const ConstBufferView& view);

/// @throws Error (unsupported) for 8-bit floats
void check_is_reduced(const char* operation, const ConstBufferView& view);

bool overlap(const ConstBufferView& a, const ConstBufferView& b) noexcept;

/// Requires:
/// - `whole` has one block as long as `part` for each rank;
/// - both are disjoint, or `part` is this rank's block of `whole` (in place).
void check_blocks(const char* operation, const char* whole_is, const ConstBufferView& whole, const char* part_is,
                  const ConstBufferView& part, int rank, int size);

}  // namespace detail

/// @param backend named in the error: "backend::Gloo" @throws Error (unsupported) for device memory
void check_host_memory(const char* backend, const ConstBufferView& input, const ConstBufferView& output);

/// As check_host_memory, for an all_reduce. @param topology selects its algorithm; empty: the backend
void check_all_reduce_memory(std::string_view topology, const char* backend, const ConstBufferView& input,
                             const ConstBufferView& output);

/// @throws Error (invalid_argument) unless both have equal length and type, and are disjoint or start at one address;
/// (unsupported) for 8-bit floats.
void check_all_reduce(const ConstBufferView& input, const ConstBufferView& output);

/// @throws Error (invalid_argument) unless `input` has `size` blocks as long as `output`, and the memory is valid;
/// (unsupported) for 8-bit floats.
void check_reduce_scatter(const ConstBufferView& input, const ConstBufferView& output, int rank, int size);

/// @throws Error (invalid_argument) unless `output` has `size` blocks as long as `input`, and the memory is valid.
void check_all_gather(const ConstBufferView& input, const ConstBufferView& output, int rank, int size);

/// @throws Error (invalid_argument) unless `root` is a rank of the channel and the memory is valid (see check_memory).
void check_broadcast(const ConstBufferView& buffer, int root, int size);

/// @throws Error (invalid_argument) unless `peer` is another rank of the channel and the memory is valid.
void check_message(const char* operation, const ConstBufferView& buffer, int peer, int rank, int size);

/// @throws Error (invalid_argument) unless both are ranks of the channel, and the memory is valid and disjoint.
void check_send_recv(const ConstBufferView& input, int to, const ConstBufferView& output, int from, int size);

}  // namespace DTRAIN_NAMESPACE::backend

#if DTRAIN_DEFINITIONS

#include <functional>
#include <limits>

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

DTRAIN_DEFINED void check_memory(const char* operation, const ConstBufferView& view) {
  const std::size_t element = size_bytes(view.dtype);
  if (element == 0 || view.count > std::numeric_limits<std::size_t>::max() / 2 / element) {
    refuse_view(operation, view, ": no memory is that long, or holds that type");
  }
  if (view.count != 0 && view.data == nullptr) {
    refuse_view(operation, view, " was given a null address");
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_view(const char* operation, const ConstBufferView& view,
                                                   const char* problem, Errc code) {
  throw_error(code, "{} of {} {}{}", {operation, view.count, name(view.dtype), problem});
}

DTRAIN_DEFINED void check_is_reduced(const char* operation, const ConstBufferView& view) {
  if (is_float8(view.dtype)) {
    refuse_view(operation, view,
                ": floats of 8 bits can be moved, and not reduced, because they have too few digits for a sum or an "
                "average; reduce them as f16, bf16 or f32",
                Errc::unsupported);
  }
}

DTRAIN_DEFINED bool overlap(const ConstBufferView& a, const ConstBufferView& b) noexcept {
  const std::less<const std::byte*> before;
  return before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes());
}

DTRAIN_DEFINED void check_blocks(const char* operation, const char* whole_is, const ConstBufferView& whole,
                                 const char* part_is, const ConstBufferView& part, int rank, int size) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (whole.dtype != part.dtype || whole.count % ranks != 0 || whole.count / ranks != part.count) {
    throw_error(Errc::invalid_argument,
                "{} on {} ranks with {} of {} {} and {} of {} {}; the first has a block like the second for each rank",
                {operation, size, whole_is, whole.count, name(whole.dtype), part_is, part.count, name(part.dtype)});
  }
  check_memory(operation, whole);
  check_memory(operation, part);
  if (overlap(whole, part) && part.data != whole.data + static_cast<std::size_t>(rank) * part.bytes()) {
    throw_error(Errc::invalid_argument,
                "the input and output of {} overlap; give disjoint memory, or this rank's block of the longer one as "
                "the shorter",
                {operation});
  }
}

}  // namespace detail

DTRAIN_NOT_INLINED DTRAIN_DEFINED void check_host_memory(const char* backend, const ConstBufferView& input,
                                                         const ConstBufferView& output) {
  for (const Device device : {input.device, output.device}) {
    if (device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "{} takes host memory, not memory of {}; use backend::Nccl or backend::Staged for it",
                  {backend, to_string(device)});
    }
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void check_all_reduce_memory(std::string_view topology, const char* backend,
                                                               const ConstBufferView& input,
                                                               const ConstBufferView& output) {
  for (const Device device : {input.device, output.device}) {
    if (!topology.empty() && device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "topology::{} reduces host memory, not memory of {}; use topology::Flat with a backend for it",
                  {topology, to_string(device)});
    }
  }
  check_host_memory(backend, input, output);
}

DTRAIN_DEFINED void check_all_reduce(const ConstBufferView& input, const ConstBufferView& output) {
  if (input.count != output.count || input.dtype != output.dtype) {
    throw_error(Errc::invalid_argument, "all_reduce of {} {} into {} {}; both buffers have the same length and type",
                {input.count, name(input.dtype), output.count, name(output.dtype)});
  }
  detail::check_memory("all_reduce", input);
  detail::check_memory("all_reduce", output);
  if (input.data != output.data && detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument,
                "the input and output of all_reduce overlap; give the same address for both, or disjoint memory");
  }
  detail::check_is_reduced("all_reduce", output);
}

DTRAIN_DEFINED void check_reduce_scatter(const ConstBufferView& input, const ConstBufferView& output, int rank,
                                         int size) {
  detail::check_blocks("reduce_scatter", "an input", input, "an output", output, rank, size);
  detail::check_is_reduced("reduce_scatter", output);
}

DTRAIN_DEFINED void check_all_gather(const ConstBufferView& input, const ConstBufferView& output, int rank, int size) {
  detail::check_blocks("all_gather", "an output", output, "an input", input, rank, size);
}

DTRAIN_DEFINED void check_broadcast(const ConstBufferView& buffer, int root, int size) {
  if (root < 0 || root >= size) {
    throw_error(Errc::invalid_argument, "broadcast from rank {} of {}; ranks are counted from 0", {root, size});
  }
  detail::check_memory("broadcast", buffer);
}

DTRAIN_DEFINED void check_message(const char* operation, const ConstBufferView& buffer, int peer, int rank, int size) {
  if (peer < 0 || peer >= size || peer == rank) {
    throw_error(Errc::invalid_argument, "{} between rank {} and rank {} of {}; a peer is another rank, counted from 0",
                {operation, rank, peer, size});
  }
  detail::check_memory(operation, buffer);
}

DTRAIN_DEFINED void check_send_recv(const ConstBufferView& input, int to, const ConstBufferView& output, int from,
                                    int size) {
  if (to < 0 || to >= size || from < 0 || from >= size) {
    throw_error(Errc::invalid_argument, "send_recv to rank {} and from rank {} of {}; ranks are counted from 0",
                {to, from, size});
  }
  detail::check_memory("send_recv", input);
  detail::check_memory("send_recv", output);
  if (detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument, "the input and output of send_recv overlap; give it disjoint memory");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_DEFINITIONS
