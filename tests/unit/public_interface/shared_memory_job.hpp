#pragma once
/// @file
/// Jobs over SharedMemory whose ranks are threads of the test, and models to train on them.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/contains.hpp"
#include "support/thread_group.hpp"

namespace front_test {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

/// support::run_well over shared memory, or as another policy says.
template <class OfRanks = Policy>
void run_well(int ranks, const support::GroupBody<OfRanks>& body,
              std::chrono::seconds patience = support::patience_with_ranks, const std::vector<std::string>& hosts = {},
              const std::vector<dtrain::GroupOptions>& options = {}) {
  support::run_well<OfRanks>(ranks, body, patience, hosts, options);
}

/// Runs `body(group)` on every rank of a job that is to fail: the text of each rank's end has all of `parts`.
template <class OfRanks = Policy>
void expect_ends(int ranks, const std::vector<std::string>& parts, const support::GroupBody<OfRanks>& body) {
  for (const support::RankEnd& end : support::run_groups<OfRanks>(ranks, body)) {
    for (const std::string& part : parts)
      CHECK_CONTAINS(end.text, part);
  }
}

/// Waits for what is enqueued on a stream.
inline void wait_for(dtrain::stream::host::StreamRef stream, dtrain::Deadline deadline) {
  dtrain::stream::host::Event done;
  stream.record(done);
  CHECK(done.block_until_complete(deadline) == dtrain::stream::WaitResult::complete);
}

/// Zeros in parameters of these sizes.
template <class Element>
struct BasicModel {
  explicit BasicModel(const std::vector<std::size_t>& elements) {
    for (const std::size_t size : elements) {
      values.emplace_back(size, Element(0.0F));
      gradients.emplace_back(size, Element(0.0F));
      const dtrain::Shape shape{static_cast<std::int64_t>(size)};
      list.push_back({"layer" + std::to_string(list.size()), dtrain::tensor_view(values.back().data(), shape),
                      dtrain::tensor_view(gradients.back().data(), shape)});
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
  bool all_are(Element value) const {
    return std::all_of(values.begin(), values.end(), [value](const std::vector<Element>& each) {
      return std::all_of(each.begin(), each.end(), [value](Element element) { return element == value; });
    });
  }

  std::vector<std::vector<Element>> values;
  std::vector<std::vector<Element>> gradients;
  std::vector<dtrain::Parameter> list;
};
using Model = BasicModel<float>;

/// A model whose parameters have several extents.
template <class Base = Model>
struct Shaped : Base {
  explicit Shaped(const std::vector<dtrain::Shape>& shapes) : Base(sizes_of(shapes)) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Base::list[i].value.shape = shapes[i];
      Base::list[i].gradient.shape = shapes[i];
    }
  }
  static std::vector<std::size_t> sizes_of(const std::vector<dtrain::Shape>& shapes) {
    std::vector<std::size_t> sizes;
    for (const dtrain::Shape& shape : shapes)
      sizes.push_back(static_cast<std::size_t>(shape.element_count()));
    return sizes;
  }
};

/// Says of `count` gradients that they are ready, from the last to the first.
inline void all_ready(const dtrain::Ready& ready, std::size_t count) {
  for (std::size_t i = count; i-- > 0;)
    ready(i);
}

/// A backward pass: element k of gradient i becomes `value(i, k)`, from the last gradient to the first.
template <class AnyModel, class Value>
void write_gradients(AnyModel& model, const dtrain::Ready& ready, Value value) {
  for (std::size_t i = model.list.size(); i-- > 0;) {
    const auto gradient = model.list[i].gradient.template as<float>();
    for (std::size_t k = 0; k < gradient.size(); ++k)
      gradient[k] = value(i, k);
    ready(i);
  }
}

/// The same with one value for all elements.
template <class AnyModel>
void fill_gradients(AnyModel& model, const dtrain::Ready& ready, float value) {
  write_gradients(model, ready, [value](std::size_t, std::size_t) { return value; });
}

/// One step; `value(i, k)` is element k of gradient i.
template <class Ddp, class AnyModel, class Value>
void run_step(Ddp& ddp, AnyModel& model, Value value) {
  ddp.backward([&](dtrain::Ready ready) { write_gradients(model, ready, value); });
}

/// An optimizer without state: subtracts `rate` times the gradients.
template <class AnyModel>
void descend(AnyModel& model, float rate) {
  for (std::size_t i = 0; i < model.list.size(); ++i) {
    const auto gradient = model.list[i].gradient.template as<float>();
    for (std::size_t k = 0; k < gradient.size(); ++k)
      model.values[i][k] -= rate * gradient[k];
  }
}

/// All elements, one vector behind the other.
template <class Element>
std::vector<Element> joined(const std::vector<std::vector<Element>>& vectors) {
  std::vector<Element> all;
  for (const std::vector<Element>& each : vectors)
    all.insert(all.end(), each.begin(), each.end());
  return all;
}

/// All gradients of a model, one behind the other.
template <class AnyModel>
std::vector<float> gradients_of(const AnyModel& model) {
  std::vector<float> all;
  for (const dtrain::Parameter& parameter : model.list) {
    const auto gradient = parameter.gradient.template as<float>();
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

/// The largest difference of an element of `a` from one of `b`; infinite where a number is missing or none.
inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
    const double difference = std::abs(static_cast<double>(a[k]) - b[k]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

/// What a call throws, of each rank.
class Sentences {
 public:
  template <class Call>
  void note(Call call) {
    std::string text = "nothing";
    try {
      call();
    } catch (const dtrain::Error& error) {
      text = error.code().message() + ": " + error.what();
    }
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  const std::vector<std::string>& texts() const { return texts_; }
  /// Whether `count` ranks have the same sentence, which contains `part`.
  bool all_say(std::size_t count, const std::string& part) const {
    bool same = texts_.size() == count;
    for (const std::string& text : texts_) {
      INFO(text);
      CHECK_CONTAINS(text, part);
      same = same && text == texts_.front() && text.find(part) != std::string::npos;
    }
    return same;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

/// Its gradients are where DistributedDataParallel wants them.
struct BindingModel : Model {
  using Model::Model;
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) {
    list[i].gradient = view;
    ++bindings;
  }
  void write(std::size_t i, float value) {
    const auto gradient = list[i].gradient.as<float>();
    std::fill(gradient.begin(), gradient.end(), value);
  }
  bool holds(std::size_t i, float value) const {
    const auto gradient = list[i].gradient.as<float>();
    return std::all_of(gradient.begin(), gradient.end(), [value](float element) { return element == value; });
  }

  int bindings = 0;
};

}  // namespace front_test
