// Steps over micro-batches: the weights have the same bits on any number of ranks, and are those of a plain loop.

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "unit/public_interface/prelude.hpp"

using dtrain::MicroBatch;
using dtrain::SampleStep;

namespace micro_batches_test {

constexpr std::size_t micro_batches = 8;

/// A model that adds to its gradients, with a buffer that its gradients depend on. Its third parameter is f64; its
/// fourth takes part where a sample divisible by 5 is the first of a micro-batch.
struct Network {
  Network() {
    for (std::size_t i = 0; i < first.size(); ++i)
      first[i] = static_cast<float>(i % 17) * 0.25F - 2;
    for (std::size_t i = 0; i < third.size(); ++i)
      third[i] = static_cast<double>(i % 13) * 0.125 - 1;
  }

  std::vector<dtrain::Parameter> parameters() {
    return {{"first", dtrain::tensor_view(first), dtrain::tensor_view(gradient_of_first)},
            {"second", dtrain::tensor_view(second), dtrain::tensor_view(gradient_of_second)},
            {"third", dtrain::tensor_view(third), dtrain::tensor_view(gradient_of_third)},
            {"fourth", dtrain::tensor_view(fourth), dtrain::tensor_view(gradient_of_fourth)}};
  }
  std::vector<dtrain::TensorView> buffers() { return {dtrain::tensor_view(buffer)}; }

  /// The mean of a loss over the samples. Calls ready(i) for the parameters that took part.
  double backward(const MicroBatch& batch, const std::function<void(std::size_t)>& ready) {
    std::mt19937_64 random(batch.seed);
    const float kept = static_cast<float>(random() % 1000) / 1000.0F;  // a dropout
    const auto samples = static_cast<float>(batch.samples.size());
    double loss = 0;
    const bool takes_fourth = batch.samples.front() % 5 == 0;
    for (const std::size_t sample : batch.samples) {
      const float x = static_cast<float>(sample % 101) / 7.0F - 5;
      for (std::size_t i = 0; i < first.size(); ++i)
        at_first[i] += (first[i] * x + buffer[0]) * kept / samples;
      for (std::size_t i = 0; i < second.size(); ++i)
        at_second[i] += (second[i] - x) / samples;
      for (std::size_t i = 0; i < third.size(); ++i)
        at_third[i] += (third[i] - static_cast<double>(x)) * 0.01 / static_cast<double>(samples);
      for (std::size_t i = 0; takes_fourth && i < fourth.size(); ++i)
        at_fourth[i] -= x / samples;
      loss += static_cast<double>(x * first[sample % first.size()]);
    }
    buffer[0] = buffer[0] * 0.9F + x_of(batch) * 0.1F;
    for (const std::size_t i : {3U, 2U, 1U, 0U}) {
      if (i != 3 || takes_fourth) ready(i);
    }
    return loss / static_cast<double>(samples);
  }

  void update() {
    const auto descend = [](auto& values, const auto* gradients) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] -= static_cast<std::remove_cvref_t<decltype(values[i])>>(0.1) * gradients[i];
    };
    descend(first, at_first);
    descend(second, at_second);
    descend(third, at_third);
    descend(fourth, at_fourth);
  }

  void clear() {
    gradient_of_first = gradient_of_second = gradient_of_fourth = {};
    gradient_of_third = {};
  }

  static float x_of(const MicroBatch& batch) { return static_cast<float>(batch.samples.back() % 11); }

  alignas(64) std::array<float, 1008> first{}, gradient_of_first{};
  alignas(64) std::array<float, 1008> second{}, gradient_of_second{};
  alignas(64) std::array<double, 336> third{}, gradient_of_third{};
  alignas(64) std::array<float, 1008> fourth{}, gradient_of_fourth{};
  std::array<float, 2> buffer{0.5F, 0};
  float* at_first = gradient_of_first.data();
  float* at_second = gradient_of_second.data();
  double* at_third = gradient_of_third.data();
  float* at_fourth = gradient_of_fourth.data();
};

/// Whose gradients dtrain places.
struct BoundNetwork : Network {
  void bind_gradient(std::size_t index, const dtrain::TensorView& view) {
    if (index == 2) {
      at_third = view.as<double>().data();
    } else {
      (index == 0 ? at_first : index == 1 ? at_second : at_fourth) = view.as<float>().data();
    }
  }
};

struct Setting {
  dtrain::ddp::DdpOptions options{.allow_unused_parameters = true};
  double clip_norm = 0;
  std::size_t dataset = 203;  // the last of its batches of 50 has 3 samples: micro-batches without samples
  bool shuffles = true;
  std::size_t parts = micro_batches;
};

/// All bits of a training.
struct Bits {
  std::string bytes;
  std::vector<double> losses, norms;
  friend bool operator==(const Bits&, const Bits&) = default;
};

void append(std::string& bytes, const auto& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
}

void append_values(std::string& bytes, const Network& net) {
  append(bytes, net.first);
  append(bytes, net.second);
  append(bytes, net.third);
  append(bytes, net.fourth);
}

dtrain::SamplerOptions sampler_options(const Setting& setting) {
  return {.dataset_size = setting.dataset,
          .global_batch = 50,
          .seed = 3,
          .shuffle = setting.shuffles,
          .micro_batches = setting.parts};
}

template <class Net, class P>
Bits train(const dtrain::ProcessGroup<P>& group, const Setting& setting) {
  Net net;
  DistributedDataParallel ddp{net, group, setting.options};
  const dtrain::DistributedSampler sampler{group, sampler_options(setting)};
  Bits bits;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (const SampleStep step : sampler.steps(epoch)) {
      const double loss = ddp.backward(
          step,
          [&](const MicroBatch& batch, Ready ready) { return net.backward(batch, [&](std::size_t i) { ready(i); }); },
          {.clip_norm = setting.clip_norm, .measure_norm = true});
      bits.losses.push_back(loss);
      bits.norms.push_back(ddp.gradient_norm().norm);
      net.update();
      append(bits.bytes, net.buffer);
    }
  }
  append_values(bits.bytes, net);
  return bits;
}

/// The same without dtrain but for the sampler: gradients of all micro-batches, added in pairs of neighbours.
Bits train_alone(const Setting& setting) {
  struct Gradients {
    std::vector<float> singles;
    std::vector<double> doubles;
  };
  Network net;
  const dtrain::DistributedSampler sampler{sampler_options(setting)};
  Bits bits;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (const SampleStep step : sampler.steps(epoch)) {
      const auto before = net.buffer;
      auto after = net.buffer;
      double loss = 0;
      std::vector<Gradients> leaves;
      for (std::size_t v = 0; v < micro_batches; ++v) {
        const MicroBatch batch = step[v];
        net.buffer = before;
        net.clear();
        const double share = static_cast<double>(batch.samples.size()) / static_cast<double>(step.samples().size());
        if (!batch.samples.empty()) loss += net.backward(batch, [](std::size_t) {}) * share;
        if (v == 0) after = net.buffer;
        Gradients& leaf = leaves.emplace_back();
        for (const auto* part : {&net.gradient_of_first, &net.gradient_of_second, &net.gradient_of_fourth}) {
          for (const float g : *part)
            leaf.singles.push_back(g * static_cast<float>(share));
        }
        for (const double g : net.gradient_of_third)
          leaf.doubles.push_back(g * share);
      }
      for (std::size_t width = 1; width < leaves.size(); width *= 2) {  // a perfect tree: 8 is a power of two
        for (std::size_t at = 0; at < leaves.size(); at += 2 * width) {
          for (std::size_t i = 0; i < leaves[at].singles.size(); ++i)
            leaves[at].singles[i] += leaves[at + width].singles[i];
          for (std::size_t i = 0; i < leaves[at].doubles.size(); ++i)
            leaves[at].doubles[i] += leaves[at + width].doubles[i];
        }
      }
      std::size_t at = 0;
      for (auto* part : {&net.gradient_of_first, &net.gradient_of_second, &net.gradient_of_fourth}) {
        for (float& g : *part)
          g = leaves[0].singles[at++];
      }
      std::copy(leaves[0].doubles.begin(), leaves[0].doubles.end(), net.gradient_of_third.begin());
      net.buffer = after;
      bits.losses.push_back(loss);
      net.update();
      append(bits.bytes, net.buffer);
    }
  }
  append_values(bits.bytes, net);
  return bits;
}

template <class Net = Network, class P = Policy>
void expect_bits(const Bits& expected, int ranks, const Setting& setting, const std::vector<std::string>& hosts = {}) {
  CAPTURE(ranks);
  run_well<P>(
      ranks,
      [&](const dtrain::ProcessGroup<P>& group) {
        const Bits bits = train<Net>(group, setting);
        CHECK(bits.bytes == expected.bytes);
        CHECK(bits.losses == expected.losses);
        if (!expected.norms.empty()) CHECK(bits.norms == expected.norms);
      },
      support::patience_with_ranks, hosts);
}

TEST_CASE("the weights, buffers and losses are those of a plain loop, on 1 to 9 ranks") {
  const Setting setting;
  const Bits alone = train_alone(setting);
  for (const int ranks : {1, 2, 3, 4, 5, 6, 8, 9})
    expect_bits(alone, ranks, setting);
  for (const int ranks : {1, 3})
    expect_bits<BoundNetwork>(alone, ranks, setting);
}

TEST_CASE("sizes of buckets, topologies and clipping change no bit with the number of ranks") {
  for (const double clip_norm : {0.0, 3.0}) {
    CAPTURE(clip_norm);
    Setting setting;
    setting.clip_norm = clip_norm;
    Bits expected;
    run_well(1, [&](const Group& group) { expected = train<Network>(group, setting); });
    CHECK(std::all_of(expected.norms.begin(), expected.norms.end(), [](double norm) { return norm > 0; }));
    for (const std::size_t bucket_bytes : {0U, 4096U, 1U << 20U}) {
      CAPTURE(bucket_bytes);
      setting.options.bucket_bytes = setting.options.first_bucket_bytes = bucket_bytes;
      for (const int ranks : {1, 2, 3})
        expect_bits(expected, ranks, setting);
    }
    using Ring = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Ring>;
    expect_bits<Network, Ring>(expected, 3, setting);
    support::CountedNetworks::instance().clear();
    using Messages = dtrain::Policy<dtrain::launch::PerProcess, support::CountingBackend, dtrain::topology::Flat>;
    expect_bits<BoundNetwork, Messages>(expected, 3, setting);
    support::CountedNetworks::instance().clear();
    using Nodes = dtrain::Policy<dtrain::launch::PerProcess, support::CountingBackend,
                                 dtrain::topology::Hierarchical<dtrain::backend::SharedMemory, dtrain::wire::Bf16>>;
    expect_bits<Network, Nodes>(expected, 4, setting, {"a", "a", "b", "b"});
  }
}

TEST_CASE("numbers of micro-batches that are no powers of two give one result, too") {
  for (const std::size_t parts : {6U, 14U}) {
    CAPTURE(parts);
    Setting setting;
    setting.parts = parts;
    Bits expected;
    run_well(1, [&](const Group& group) { expected = train<Network>(group, setting); });
    for (const int ranks : {2, 3, 5, 7})
      expect_bits(expected, ranks, setting);
  }
}

TEST_CASE("what steps over micro-batches cannot have is refused in a sentence") {
  const auto nothing = [](const MicroBatch&, Ready) {};
  expect_ends(1, {"sampler.steps() needs SamplerOptions::micro_batches"}, [](const Group& group) {
    const dtrain::DistributedSampler sampler{group, {.dataset_size = 10, .global_batch = 5}};
    static_cast<void>(sampler.steps(0));
  });
  const auto refused = [&](const std::string& sentence, const auto& body) {
    expect_ends(2, {sentence}, [&](const Group& group) {
      Network net;
      const dtrain::DistributedSampler sampler{group, sampler_options({})};
      const dtrain::SampleSteps steps = sampler.steps(1);
      body(group, net, steps[0]);
    });
  };
  refused("under no_sync()", [&](const Group& group, Network& net, const SampleStep& step) {
    DistributedDataParallel ddp{net, group};
    const auto scope = ddp.no_sync();
    ddp.backward(step, nothing);
  });
  refused("but a gradient hook reduces the buckets", [&](const Group& group, Network& net, const SampleStep& step) {
    DistributedDataParallel ddp{net, group, {}, dtrain::hooks::Cast<bfloat16>()};
    ddp.backward(step, nothing);
  });
  refused("DdpOptions::broadcast_buffers is false", [&](const Group& group, Network& net, const SampleStep& step) {
    DistributedDataParallel ddp{net, group, {.broadcast_buffers = false}};
    ddp.backward(step, nothing);
  });
  refused("in a micro-batch parameter 0 'first' got no gradient",
          [&](const Group& group, Network& net, const SampleStep& step) {
            DistributedDataParallel ddp{net, group};
            ddp.backward(step, nothing);
          });
  refused("ready(1) for parameter 1 'second' came twice in a micro-batch",
          [&](const Group& group, Network& net, const SampleStep& step) {
            DistributedDataParallel ddp{net, group};
            ddp.backward(step, [](const MicroBatch&, Ready ready) {
              ready(1);
              ready(1);
            });
          });
  refused("'first' changed after ready(0)", [&](const Group& group, Network& net, const SampleStep& step) {
    DistributedDataParallel ddp{net, group, {.allow_unused_parameters = true, .check_ready = true}};
    ddp.backward(step, [&](const MicroBatch& batch, Ready ready) {
      net.backward(batch, [&](std::size_t i) { ready(i); });
      net.at_first[7] += 1;
    });
  });
  refused("in the function of a step over micro-batches",
          [&](const Group& group, Network& net, const SampleStep& step) {
            DistributedDataParallel ddp{net, group};
            ddp.backward(step, [&](const MicroBatch&, Ready) { group.barrier(); });
          });
  expect_ends(1, {"steps over micro-batches add gradients of f32 and f64"}, [&](const Group& group) {
    BasicModel<bfloat16> model({3});
    DistributedDataParallel ddp{model, group};
    const dtrain::DistributedSampler sampler{group, sampler_options({})};
    const dtrain::SampleSteps steps = sampler.steps(1);
    ddp.backward(steps[0], nothing);
  });
}

TEST_CASE("ordinary steps between steps over micro-batches have the norm of their gradients") {
  run_well(3, [](const Group& group) {
    Network net;
    DistributedDataParallel ddp{net, group, {.bucket_bytes = 1U << 20U, .allow_unused_parameters = true}};
    const dtrain::DistributedSampler sampler{group, sampler_options({})};
    const dtrain::SampleSteps steps = sampler.steps(1);
    for (int round = 0; round < 3; ++round) {
      ddp.backward(steps[0], [&](const MicroBatch& batch, Ready ready) {
        return net.backward(batch, [&](std::size_t i) { ready(i); });
      });
      ddp.backward(
          [&](Ready ready) {
            net.clear();
            net.gradient_of_first[0] = 3;
            net.gradient_of_third[0] = 4;
            for (const std::size_t i : {2U, 0U, 1U, 3U})
              ready(i);
          },
          {.measure_norm = true});
      CHECK(ddp.gradient_norm().norm == 5);
    }
  });
}

TEST_CASE("a gradient that a micro-batch computes without ready() is not part of a later one") {
  for (const int ranks : {1, 2, 8}) {
    run_well(ranks, [&](const Group& group) {
      Model model({16});
      DistributedDataParallel ddp{model, group, {.allow_unused_parameters = true}};
      const dtrain::DistributedSampler sampler{group, sampler_options({})};
      const dtrain::SampleSteps steps = sampler.steps(1);
      ddp.backward(steps[0], [&](const MicroBatch& batch, Ready ready) {
        for (float& gradient : model.gradients[0])
          gradient += 8;
        if (batch.number % 2 == 1) ready(0);
      });
      CHECK(model.gradients[0][3] == doctest::Approx(4).epsilon(0.05));
    });
  }
}

TEST_CASE("ready() after the function, a step of no sampler and the weights of another model are refused") {
  const auto refused = [](const std::string& sentence, const auto& body) {
    expect_ends(1, {sentence}, [&](const Group& group) {
      Network net;
      DistributedDataParallel ddp{net, group, {.allow_unused_parameters = true}};
      const dtrain::DistributedSampler sampler{group, sampler_options({})};
      const dtrain::SampleSteps steps = sampler.steps(1);
      body(net, ddp, steps[0]);
    });
  };
  refused("came when no micro-batch was under way", [](Network&, auto& ddp, const SampleStep& step) {
    std::optional<Ready> kept;
    ddp.backward(step, [&](const MicroBatch&, Ready ready) { kept = ready; });
    (*kept)(1);
  });
  refused("a step of 0 samples in 8 micro-batches", [](Network&, auto& ddp, const SampleStep&) {
    ddp.backward(SampleStep({}, 8, 1), [](const MicroBatch&, Ready) {});
  });
  refused("MasterWeights", [](Network&, auto& ddp, const SampleStep& step) {
    BasicModel<bfloat16> other({3});
    dtrain::MasterWeights master(other);
    ddp.backward(step, [](const MicroBatch&, Ready) {}, {.master = &master});
  });
  static_assert(!std::is_convertible_v<dtrain::MicroBatchLoss, bool>);
  static_assert(std::is_convertible_v<dtrain::MicroBatchLoss, double>);
}

TEST_CASE("a loss that is NaN has one sign on any number of ranks") {
  for (const int ranks : {1, 2, 3}) {
    run_well(ranks, [](const Group& group) {
      Network net;
      DistributedDataParallel ddp{net, group, {.allow_unused_parameters = true}};
      const dtrain::DistributedSampler sampler{group, sampler_options({})};
      const dtrain::SampleSteps steps = sampler.steps(1);
      const double loss = ddp.backward(steps[0], [](const MicroBatch&, Ready) { return -std::nan(""); });
      CHECK(std::bit_cast<std::uint64_t>(loss) ==
            std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN()));
    });
  }
}

TEST_CASE("a global batch above the data set is one step, whatever it is") {
  const dtrain::DistributedSampler sampler{
      {.dataset_size = 10, .global_batch = std::numeric_limits<std::size_t>::max(), .micro_batches = 4}};
  const dtrain::SampleSteps steps = sampler.steps(1);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].samples().size() == 10);
}

TEST_CASE("an exception of a micro-batch ends the job with its text, and the step can be of no use again") {
  expect_ends(3, {"a broken sample"}, [](const Group& group) {
    Network net;
    DistributedDataParallel ddp{net, group, {.allow_unused_parameters = true}};
    const dtrain::DistributedSampler sampler{group, sampler_options({})};
    for (const SampleStep step : sampler.steps(0)) {
      ddp.backward(step, [&](const MicroBatch& batch, Ready ready) {
        if (batch.number == 5) throw std::runtime_error("a broken sample");
        return net.backward(batch, [&](std::size_t i) { ready(i); });
      });
    }
  });
}

}  // namespace micro_batches_test
