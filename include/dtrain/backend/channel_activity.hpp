#pragma once
/// @file
/// ChannelActivity of an OrderedChannel: the operation that it is in, which another thread may read.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Relaxed stores alone, so that an operation of 64 bytes pays nothing that can be measured: what status() reads while
/// operations come and go may be parts of two of them. Threads: begin and end in the one that runs the channel's work;
/// status in any.
class ChannelActivity {
 public:
  /// Makes the activity of another channel with this name, which is listed like this one.
  using Split = std::function<std::shared_ptr<ChannelActivity>(std::string name)>;

  ChannelActivity(std::string name, DescribeOperation describe, Split split = {})
      : name_(std::move(name)), describe_(std::move(describe)), split_(std::move(split)) {}
  ChannelActivity(const ChannelActivity&) = delete;
  ChannelActivity& operator=(const ChannelActivity&) = delete;

  /// The rank has enqueued the operation, which may begin later.
  void call(const Operation& operation) noexcept {
    if (operation.sequence != 0) called_.store(operation.sequence, std::memory_order_relaxed);
  }
  void begin(const Operation& operation) noexcept {
    sequence_.store(operation.sequence, std::memory_order_relaxed);
    count_.store(operation.count, std::memory_order_relaxed);
    kind_.store(packed(operation), std::memory_order_relaxed);
    root_.store(operation.root, std::memory_order_relaxed);
    is_in_operation_.store(true, std::memory_order_relaxed);
  }
  void end() noexcept { is_in_operation_.store(false, std::memory_order_relaxed); }

  /// Null if there is no list.
  std::shared_ptr<ChannelActivity> split(std::string name) const { return split_ ? split_(std::move(name)) : nullptr; }

  /// @throws std::bad_alloc
  rendezvous::RankStatus::Channel status() const;

 private:
  static std::uint32_t packed(const Operation& operation) noexcept {
    return static_cast<std::uint32_t>(operation.kind) | static_cast<std::uint32_t>(operation.dtype) << 8U |
           static_cast<std::uint32_t>(operation.op) << 16U;
  }

  const std::string name_;
  const DescribeOperation describe_;
  const Split split_;
  std::atomic<std::uint64_t> called_{0};
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint32_t> kind_{0};
  std::atomic<std::int32_t> root_{0};
  std::atomic<bool> is_in_operation_{false};
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED rendezvous::RankStatus::Channel ChannelActivity::status() const {
  const std::uint32_t kind = kind_.load(std::memory_order_relaxed);
  Operation operation;
  operation.sequence = sequence_.load(std::memory_order_relaxed);
  operation.count = count_.load(std::memory_order_relaxed);
  operation.root = root_.load(std::memory_order_relaxed);
  operation.kind = static_cast<OperationKind>(kind & 0xffU);
  operation.dtype = static_cast<DType>(kind >> 8U & 0xffU);
  operation.op = static_cast<ReduceOp>(kind >> 16U & 0xffU);
  const bool is_known = operation.count != 0;
  return {name_,
          is_known ? described(operation, describe_) : backend::name(operation.kind),
          operation.sequence,
          called_.load(std::memory_order_relaxed),
          0,
          is_in_operation_.load(std::memory_order_relaxed)};
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
