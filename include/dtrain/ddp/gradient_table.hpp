#pragma once
/// @file
/// GradientTable of a GradientArena: each parameter's gradient: addresses, name, shape; checks ready()'s arguments.
/// ParameterNames: for error sentences.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Names of parameters, for error sentences. Threads: any, concurrently.
class ParameterNames {
 public:
  explicit ParameterNames(std::span<const Parameter> parameters);

  std::size_t size() const noexcept { return names_.size(); }

  /// @throws Error (invalid_argument): the index is out of range
  [[noreturn]] void refuse_index(std::size_t parameter, const char* call = "ready") const;

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const { return describe_parameter(parameter, names_[parameter]); }

  /// @throws Error: "ready(3) for parameter 3 'fc1.weight' " and the problem
  [[noreturn]] void refuse_ready(std::size_t parameter, std::string_view problem, Errc code = Errc::invalid_argument,
                                 SourceLocation where = SourceLocation::current()) const;

 private:
  std::vector<std::string> names_;
};

/// A bound gradient lies in the arena: both addresses are the same and nothing is copied.
struct GradientSlot {
  std::byte* own = nullptr;    ///< the parameter's gradient memory
  std::byte* place = nullptr;  ///< its place in the arena
  std::size_t bytes = 0;

  bool is_bound() const noexcept { return own == place; }

  /// `source` is the slot's own memory or memory that does not overlap the arena.
  void pack_from(const std::byte* source) const noexcept {
    if (source != place && bytes != 0) {
      kernels::copy_bytes(place, source, bytes);
    }
  }

  void unpack() const noexcept {
    if (!is_bound() && bytes != 0) {
      kernels::copy_bytes(own, place, bytes);
    }
  }
};

/// Threads: const members concurrently. Indices are in range, except for check().
class GradientTable {
 public:
  /// @param arena begin of the plan's arena, on `device`; null only if the arena has 0 bytes
  /// @throws Error (unsupported) for gradients that are not on `device`; (invalid_argument) for an address in device
  /// memory that is no multiple of the element size, at which a kernel may not read
  GradientTable(std::span<const Parameter> parameters, const BucketPlan& plan, std::byte* arena, Device device = {});

  std::size_t size() const noexcept { return slots_.size(); }

  const GradientSlot& operator[](std::size_t parameter) const noexcept { return slots_[parameter]; }

  /// The gradient's present view in the parameter's own memory.
  const TensorView& view(std::size_t parameter) const noexcept { return views_[parameter]; }

  /// Binds a gradient: from now on it lies in the arena. The caller has copied its content there.
  /// @returns the gradient's new view
  TensorView bind(std::size_t parameter) noexcept {
    slots_[parameter].own = views_[parameter].data = slots_[parameter].place;
    return views_[parameter];
  }

  /// Places the gradient as in another plan of the same gradients. The caller moves a bound gradient's content.
  /// @returns the gradient's present view
  TensorView move(std::size_t parameter, const BucketPlan& plan) noexcept {
    const bool bound = slots_[parameter].is_bound();
    slots_[parameter].place = place(plan, parameter);
    return bound ? bind(parameter) : views_[parameter];
  }

  /// Removes the memory of all gradients: later calls of ready() give a gradient's memory.
  void unbind() noexcept {
    for (std::size_t parameter = 0; parameter < size(); ++parameter) {
      slots_[parameter].own = views_[parameter].data = nullptr;
    }
  }

  /// Whether the model's gradients have memory: all gradients with elements, or none.
  bool have_memory() const noexcept {
    const auto first =
        std::find_if(slots_.begin(), slots_.end(), [](const GradientSlot& slot) { return slot.bytes != 0; });
    return first == slots_.end() || first->own != nullptr;
  }

  /// The first bound gradient with elements.
  std::optional<std::size_t> first_bound() const noexcept;

  /// @throws Error (unsupported) if a gradient with elements is bound
  void require_unbound() const;

  /// Places all gradients, none of which is bound, in another arena.
  void move_to(std::byte* arena, const BucketPlan& plan) {
    arena_ = arena;
    for (std::size_t parameter = 0; parameter < size(); ++parameter) {
      move(parameter, plan);
    }
  }

  /// @throws Error (invalid_argument) for an index out of range, a gradient on a device without a stream, and memory
  /// unlike the parameter's own or at an address that the constructor rejects; (unsupported) for a stream of another
  /// device.
  void check(const ReadyGradient& gradient) const {
    if (gradient.parameter >= size()) names_.refuse_index(gradient.parameter);
    const GradientSlot& slot = slots_[gradient.parameter];
    const bool has_stream = gradient.stream ? takes(*gradient.stream) : device_.kind == DeviceKind::host;
    const bool has_memory = gradient.memory ? is_same_kind(gradient) && is_aligned(*gradient.memory)
                                            : slot.own != nullptr || slot.bytes == 0;
    if (!has_stream || !has_memory) refuse(gradient);
  }

  /// Where the gradient of a checked ready() lies: a view without memory, of an empty gradient, means its own.
  const std::byte* memory_of(const ReadyGradient& gradient) const noexcept {
    const bool is_given = gradient.memory && gradient.memory->data != nullptr;
    return is_given ? gradient.memory->data : slots_[gradient.parameter].own;
  }

  const ParameterNames& names() const noexcept { return names_; }

 private:
  std::byte* place(const BucketPlan& plan, std::size_t parameter) const noexcept {
    return views_[parameter].bytes() == 0 ? views_[parameter].data : arena_ + plan.offset_of[parameter];
  }

  std::string where() const;

  bool takes(StreamHandle stream) const noexcept {
    const bool is_there =
        device_.kind == DeviceKind::host ? stream.device.kind == device_.kind : stream.device == device_;
    return is_there && !is_stream_of_each_thread(stream);
  }

  /// Whether the given memory is there, with the element count, dtype and device of the parameter's own.
  bool is_same_kind(const ReadyGradient& gradient) const noexcept {
    const TensorView& own = views_[gradient.parameter];
    const TensorView& given = *gradient.memory;
    return (given.data != nullptr || given.bytes() == 0) && given.dtype == own.dtype && given.device == own.device &&
           given.shape.element_count() == own.shape.element_count();
  }

  /// @pre its stream or its memory is not taken
  [[noreturn]] void refuse(const ReadyGradient& gradient) const;

  static bool is_aligned(const TensorView& gradient) noexcept {
    return gradient.device.kind == DeviceKind::host || gradient.bytes() == 0 ||
           reinterpret_cast<std::uintptr_t>(gradient.data) % size_bytes(gradient.dtype) == 0;
  }
  static std::string alignment_problem(const TensorView& gradient);

  std::byte* arena_;
  Device device_;
  ParameterNames names_;
  std::vector<TensorView> views_;
  std::vector<GradientSlot> slots_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED ParameterNames::ParameterNames(std::span<const Parameter> parameters) {
  for (const Parameter& parameter : parameters) {
    names_.push_back(parameter.name);
  }
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void ParameterNames::refuse_index(std::size_t parameter, const char* call) const {
  throw_error(Errc::invalid_argument,
              "{}({}) was called, but the model has {} parameters; pass an index into parameters()",
              {call, parameter, size()});
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void ParameterNames::refuse_ready(std::size_t parameter, std::string_view problem,
                                                                    Errc code, SourceLocation where) const {
  throw_error(code, "ready({}) for {} {}", {parameter, describe(parameter), problem}, where);
}

DTRAIN_DEFINED GradientTable::GradientTable(std::span<const Parameter> parameters, const BucketPlan& plan,
                                            std::byte* arena, Device device)
    : arena_(arena), device_(device), names_(parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& gradient = parameters[i].gradient;
    views_.push_back(gradient);
    slots_.push_back({gradient.data, place(plan, i), gradient.bytes()});
    if (gradient.device != device) {
      throw_error(Errc::unsupported, "the gradient of {} is on {}; this reducer takes gradients {}",
                  {names_.describe(i), to_string(gradient.device), where()});
    }
    if (!is_aligned(gradient)) {
      throw_error(Errc::invalid_argument, "the gradient of {} {}", {names_.describe(i), alignment_problem(gradient)});
    }
  }
}

DTRAIN_DEFINED std::string GradientTable::alignment_problem(const TensorView& gradient) {
  return format_text("is at an address that is no multiple of the {} bytes of an element; align it, as cudaMalloc does",
                     {size_bytes(gradient.dtype)});
}

DTRAIN_DEFINED std::optional<std::size_t> GradientTable::first_bound() const noexcept {
  const auto bound = std::find_if(slots_.begin(), slots_.end(),
                                  [](const GradientSlot& slot) { return slot.is_bound() && slot.bytes != 0; });
  return bound == slots_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(bound - slots_.begin()));
}

DTRAIN_DEFINED void GradientTable::require_unbound() const {
  if (const std::optional<std::size_t> bound = first_bound()) {
    throw_error(Errc::unsupported,
                "a ShardedOptimizer of stage 2 uses the memory of reduced gradients again, but bind_gradient has {} "
                "there; wrap a "
                "model without bind_gradient, whose ready(i) copies gradients",
                {names_.describe(*bound)});
  }
}

DTRAIN_DEFINED std::string GradientTable::where() const {
  return device_.kind == DeviceKind::host ? std::string("in host memory")
                                          : format_text("on {}, the device of its communication", {to_string(device_)});
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void GradientTable::refuse(const ReadyGradient& gradient) const {
  const std::size_t i = gradient.parameter;
  if (!gradient.stream && device_.kind != DeviceKind::host) {
    names_.refuse_ready(i, format_text("came without a stream, but the gradient is on {}; call ready({}) with the "
                                       "stream that produces it",
                                       {to_string(device_), gradient.memory ? "i, view, stream" : "i, stream"}));
  }
  if (gradient.stream && gradient.stream->device != device_) {
    names_.refuse_ready(i,
                        format_text("came with a stream of {}; this reducer takes gradients {}",
                                    {to_string(gradient.stream->device), where()}),
                        Errc::unsupported);
  }
  if (gradient.stream && !takes(*gradient.stream)) {
    names_.refuse_ready(i,
                        "came with cudaStreamPerThread, which is another stream in every thread; pass a stream that "
                        "was created, or the default stream");
  }
  if (!gradient.memory) {
    names_.refuse_ready(i,
                        "came without memory, and the parameter's own gradient has none; call ready(i, view) with a "
                        "view of the gradient (on a GPU ready(i, view, stream))");
  }
  const TensorView& given = *gradient.memory;
  if (is_same_kind(gradient)) names_.refuse_ready(i, alignment_problem(given));
  const char* const none = given.data == nullptr && given.bytes() != 0 ? "no memory of " : "";
  names_.refuse_ready(i, format_text("came with {}{}, but the parameter's own is {}",
                                     {none, detail::kind(given), detail::kind(views_[i])}));
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
