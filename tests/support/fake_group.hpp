#pragma once
/// @file
/// A policy whose process group is one rank of a fake job, for tests of what stands on ProcessGroup.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/process_group.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "support/fake_communicator.hpp"
#include "support/fake_group_handle.hpp"
#include "support/fake_store.hpp"
#include "support/manual_stream.hpp"

namespace support {

/// Whoever waits runs the work; remembers whether a helper was asked for.
struct FakeStreamOwner : ManualStream {
  FakeStreamOwner() : ManualStream(true) {}
  void start_helper() { helper_started = true; }
  bool helper_started = false;
};

struct FakeBackend {
  using Communicator = FakeCommunicator;
  using StreamOwner = FakeStreamOwner;
  static constexpr std::string_view name() noexcept { return "Fake"; }
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::host; }
  static constexpr bool reduces(dtrain::DType dtype) noexcept { return dtype != dtrain::DType::u8; }
};

struct FakePolicy {
  using ChannelBackend = FakeBackend;
};

/// What the tests look at.
struct FakeGroupState {
  std::shared_ptr<FakeGroupHandle> handle;
  std::shared_ptr<FakeChannel> channel = std::make_shared<FakeChannel>();
  std::vector<std::string> opened;
  std::vector<std::string> reported;
  std::vector<std::shared_ptr<void>> kept;
  std::shared_ptr<dtrain::group::GradientBindingRegistry> gradient_bindings =
      std::make_shared<dtrain::group::GradientBindingRegistry>();
};

}  // namespace support

namespace DTRAIN_NAMESPACE {

template <>
class ProcessGroup<support::FakePolicy> {
 public:
  explicit ProcessGroup(std::shared_ptr<support::FakeGroupState> state) : state_(std::move(state)) {}

  int rank() const noexcept { return members().rank; }
  int world_size() const noexcept { return members().world_size; }
  int local_world_size() const noexcept { return members().local_world_size; }
  const rendezvous::Membership& members() const noexcept { return handle()->members(); }
  std::chrono::nanoseconds timeout() const noexcept { return handle()->timeout(); }
  support::FakeStore store() const { return handle()->store(); }
  const std::shared_ptr<FailureLatch>& failure() const { return handle()->failure(); }

  const ProcessGroup& internals() const noexcept { return *this; }
  const ProcessGroup* rank_context() const noexcept { return this; }
  static constexpr bool is_torn = false;
  std::shared_ptr<const support::FakeGroupHandle> handle() const noexcept { return state_->handle; }

  support::FakeStreamOwner open_stream(stream::host::StreamKind) const { return {}; }
  support::FakeCommunicator open_channel(const std::string& purpose, Accumulate = Accumulate::element,
                                         const backend::DescribeOperation& = {}) const {
    state_->opened.push_back(purpose);
    state_->channel->rank = rank();
    state_->channel->size = world_size();
    return support::FakeCommunicator(state_->channel);
  }

  void report_exception(const std::string& text) const noexcept {
    state_->reported.push_back(text);
    failure()->report({CauseKind::exception, rank(), members().host, text});
  }
  void keep_alive_until_leave(std::shared_ptr<void> work) const noexcept { state_->kept.push_back(std::move(work)); }
  const std::shared_ptr<group::GradientBindingRegistry>& gradient_bindings() const noexcept {
    return state_->gradient_bindings;
  }
  int next_number(const std::string& purpose) const { return handle()->next_number(purpose); }
  void require_may_block() const noexcept {}
  void remind_of_commit() const noexcept {}

 private:
  std::shared_ptr<support::FakeGroupState> state_;
};

}  // namespace DTRAIN_NAMESPACE
