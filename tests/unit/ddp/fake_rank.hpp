#pragma once
/// @file
/// One rank with a reducer over a fake communicator, and a model of a few parameters.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "support/fake_communicator.hpp"
#include "support/fake_group_handle.hpp"
#include "support/manual_stream.hpp"

namespace ddp_test {

using FakeReducer = dtrain::ddp::Reducer<support::FakeCommunicator>;

/// Parameter i is called "p<i>" and has sizes[i] floats.
struct FakeRank {
  explicit FakeRank(std::vector<std::size_t> sizes, dtrain::ddp::BucketCaps caps = {0, 0},
                    bool runs_when_waited_for = true, std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                    dtrain::DdpOptions options = {}, dtrain::ddp::ReducerParts parts = {})
      : stream(runs_when_waited_for) {
    channel->rank = 1;
    channel->size = 3;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      values.emplace_back(sizes[i], 1.0F);
      gradients.emplace_back().reserve(sizes[i] + 1);  // an empty one has memory too
      gradients.back().resize(sizes[i]);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const dtrain::Shape shape{static_cast<std::int64_t>(sizes[i])};
      parameters.push_back({"p" + std::to_string(i), dtrain::tensor_view(values[i].data(), shape),
                            dtrain::tensor_view(gradients[i].data(), shape)});
    }
    dtrain::ddp::FailureContext context{latch, 1, "host-a", timeout, group};
    options.first_bucket_bytes = caps.first_bucket_bytes;
    options.bucket_bytes = caps.bucket_bytes;
    reducer = std::make_unique<FakeReducer>(support::FakeCommunicator(channel), stream.ref(), parameters,
                                            dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), caps),
                                            options, std::move(context), std::move(parts));
  }

  /// Writes `value` into all of gradient i, where it lives now.
  void write(std::size_t i, float value) {
    for (float& element : parameters[i].gradient.as<float>())
      element = value;
  }
  float read(std::size_t i) const { return parameters[i].gradient.as<float>()[0]; }

  void bind_all() {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].gradient = reducer->bind(i);
  }

  /// The buckets in the order in which they were launched.
  std::vector<std::size_t> launched() const {
    std::vector<std::size_t> order;
    for (const support::FakeChannel::Launch& launch : channel->launches) {
      const auto& buckets = reducer->plan().buckets;
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        if (buckets[b].offset == launch.offset) order.push_back(b);
      }
    }
    return order;
  }

  std::shared_ptr<dtrain::FailureLatch> latch = std::make_shared<dtrain::FailureLatch>();
  std::shared_ptr<support::FakeChannel> channel = std::make_shared<support::FakeChannel>();
  support::ManualStream stream;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
  std::vector<dtrain::Parameter> parameters;
  std::shared_ptr<support::FakeGroupHandle> group =
      support::FakeGroupHandle::of(std::make_shared<support::FakeJob>(3), 1, 3);
  const std::vector<bool>& abandoned = group->abandoned;
  std::unique_ptr<FakeReducer> reducer;
};

}  // namespace ddp_test
