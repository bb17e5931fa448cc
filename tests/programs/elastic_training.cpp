// A small elastic training for tests that kill its workers.
//   elastic_training --nproc-per-node=4 --min-ranks=2 --max-restarts=3 [WORD=VALUE ...]
// Each worker says on stdout, a line each: "worker W is process P"; "worker W is rank R of N from step S"; "commit S
// attempt-size N digest D" if asked for; "worker W finished as rank R of N: D after S steps". D is the CRC-like digest
// of the weights, the same on all ranks.
//   steps=S              the steps of the job (100)
//   pause=MS             how long a backward pass takes (5)
//   log                  prints each commit
//   bound                the model's gradients lie in the wrapper's memory
//   throw=S              worker 1 throws in the backward pass of step S, if it has not before
//   torn=S               worker 1 throws inside the commit of step S
//   call=S               worker 0 makes a call of dtrain inside the commit of step S
//   return=CODE          what the function returns

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dtrain/dtrain.hpp>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

struct Options {
  explicit Options(dtrain::Arguments arguments) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const std::string word = arguments[i];
      const std::size_t equals = word.find('=');
      values[word.substr(0, equals)] = equals == std::string::npos ? 1 : std::atol(word.c_str() + equals + 1);
    }
  }
  long number(const std::string& name, long otherwise = -1) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : found->second;
  }
  std::map<std::string, long> values;
};

constexpr std::size_t layers = 3;
constexpr std::size_t width = 500;

struct Model {
  std::vector<std::vector<float>> values{layers, std::vector<float>(width, 1)};
  std::vector<std::vector<float>> own{layers, std::vector<float>(width)};
  std::vector<float*> gradients;
  Model() {
    for (auto& each : own) {
      gradients.push_back(each.data());
    }
  }
  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> found;
    for (std::size_t i = 0; i < layers; ++i) {
      found.push_back({"layer" + std::to_string(i), dtrain::tensor_view(values[i]),
                       dtrain::tensor_view(gradients[i], {static_cast<std::int64_t>(width)})});
    }
    return found;
  }
  std::uint32_t digest() const {
    std::uint32_t hash = 2166136261u;
    for (const auto& each : values) {
      for (const float value : each) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        hash = (hash ^ bits) * 16777619u;
      }
    }
    return hash;
  }
  /// The gradient of the mean over the samples of (value * sample / 1000 - 1)^2 / 2.
  void backward(std::span<const std::size_t> samples, float weight, dtrain::Ready ready) {
    for (std::size_t i = layers; i-- > 0;) {
      for (std::size_t j = 0; j < width; ++j) {
        float sum = 0;
        for (const std::size_t sample : samples) {
          const float x = static_cast<float>(sample) / 1000.0F;
          sum += (values[i][j] * x - 1) * x;
        }
        gradients[i][j] = weight * sum / static_cast<float>(samples.size());
      }
      ready(i);
    }
  }
};

/// The same with gradients in the wrapper's memory.
struct BoundModel : Model {
  void bind_gradient(std::size_t i, dtrain::TensorView where) { gradients[i] = reinterpret_cast<float*>(where.data); }
};

template <class M>
int train(dtrain::Elastic<Policy> job, const Options& options) {
  const int worker = job.local_rank();
  const auto steps = static_cast<std::uint64_t>(options.number("steps", 100));
  const auto at = [&](const char* name) { return options.number(name) == static_cast<long>(job.step()); };
  M model;
  job.keep(dtrain::parameter_values(model.parameters()));
  std::printf("worker %d is process %d\n", worker, static_cast<int>(::getpid()));
  return job.train([&](dtrain::ProcessGroup<Policy> group) {
    std::printf("worker %d is rank %d of %d from step %d\n", worker, group.rank(), group.world_size(),
                static_cast<int>(job.step()));
    dtrain::DistributedDataParallel ddp{model, group};
    dtrain::DistributedSampler sampler{group, {.dataset_size = 1000, .global_batch = 60, .seed = 1}};
    const std::uint64_t per_epoch = sampler.steps_per_epoch();
    while (job.step() < steps) {
      const auto shares = sampler.shares(job.step() / per_epoch);
      const dtrain::SampleShare share = shares[job.step() % per_epoch];
      ddp.backward([&](dtrain::Ready ready) {
        std::this_thread::sleep_for(std::chrono::milliseconds(options.number("pause", 5)));
        if (worker == 1 && at("throw")) {
          throw std::runtime_error("a mistake of worker 1 at step " + std::to_string(job.step()));
        }
        model.backward(share.samples, share.weight, ready);
      });
      job.commit([&] {
        for (std::size_t i = 0; i < layers; ++i) {
          for (std::size_t j = 0; j < width; ++j) {
            model.values[i][j] -= 0.1F * model.gradients[i][j];
          }
        }
        if (worker == 1 && at("torn")) {
          throw std::runtime_error("half a step");
        }
        if (worker == 0 && at("call")) {
          group.barrier();
        }
      });
      if (options.number("log") != -1) {
        std::printf("commit %d size %d digest %08x\n", static_cast<int>(job.step()), group.world_size(),
                    model.digest());
      }
    }
    std::printf("worker %d finished as rank %d of %d: %08x after %d steps\n", worker, group.rank(), group.world_size(),
                model.digest(), static_cast<int>(job.step()));
    return static_cast<int>(options.number("return", 0));
  });
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
    const Options options(arguments);
    return options.number("bound") == -1 ? train<Model>(job, options) : train<BoundModel>(job, options);
  });
}
