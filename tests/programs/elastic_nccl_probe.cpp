// An elastic training over NCCL in which worker 1 kills itself in the middle of a step, again and again, and is
// replaced.
//   elastic_nccl_probe --nproc-per-node=2 --min-ranks=2 --max-restarts=5 [WORD=VALUE ...]
// At the end worker 0, which lives throughout, prints "elastic: 5 kills, 5 restarts, sums right, memory used A MiB
// before, B MiB after, S s in all". The exit code is 1 where a worker's sums are wrong, or where more of worker 0's
// device is used than before the first kill.
//   kills=K              how often (5)
//   workers=N            how many there are (2)
//   growth=M             how many MiB more may be used (100): an attempt's two communicators, of 8 thread blocks and
//                        NCCL_BUFFSIZE of 4 MiB, take 64 MiB or more, so that it is seen if each of five leaves a third
//   break                the device of worker 2 breaks when the first kill ends the step, where CUDA is emulated
#include "programs/prelude.hpp"
#if DTRAIN_WITH_NCCL

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "support/broken_device.hpp"

namespace {

using dtrain::stream::cuda::check;
using Clock = std::chrono::steady_clock;
using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Nccl>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr std::size_t layers = 4;
constexpr std::size_t count = 64 * 1024;

struct Options {
  explicit Options(dtrain::Arguments arguments) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const std::string_view word = arguments[i];
      const auto number = [word](std::string_view name, int& value) {
        if (word.starts_with(name)) value = std::atoi(word.data() + name.size());
      };
      number("kills=", kills);
      number("workers=", workers);
      number("growth=", most_growth);
      breaks = breaks || word == "break";
    }
  }

  int kills = 5;
  int workers = 2;
  int most_growth = 100;  ///< MiB
  bool breaks = false;
};

/// Whole numbers, which float adds exactly for as long as this runs.
float mean_gradient(std::uint64_t step, std::size_t i, std::size_t k) {
  return static_cast<float>(2 * (1 + (step + i + k) % 7));
}

/// Parameters on the worker's device, and their values on the host, which are kept. The ranks' gradients differ, but
/// not their mean.
class Model {
 public:
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  Model() {
    const dtrain::Shape shape{static_cast<std::int64_t>(count)};
    for (std::size_t i = 0; i < layers; ++i) {
      values_.emplace_back(count * sizeof(float));
      gradients_.emplace_back(count * sizeof(float));
      const dtrain::Device device{dtrain::DeviceKind::cuda, values_[i].device()};
      list_.push_back({std::string(1, static_cast<char>('a' + i)),
                       {values_[i].data(), shape, dtrain::DType::f32, device},
                       {gradients_[i].data(), shape, dtrain::DType::f32, device}});
      kept[i].resize(count);
    }
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }

  void copy_to_device() const {
    for (std::size_t i = 0; i < list_.size(); ++i)
      check(cudaMemcpy(values_[i].data(), kept[i].data(), values_[i].bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  void compute(std::size_t i, std::uint64_t step, const Group& group, dtrain::Ready ready) {
    const auto apart = static_cast<float>(2 * group.rank() - (group.world_size() - 1));
    for (std::size_t k = 0; k < count; ++k)
      host_[k] = mean_gradient(step, i, k) + apart;
    check(cudaMemcpyAsync(gradients_[i].data(), host_.data(), gradients_[i].bytes(), cudaMemcpyHostToDevice,
                          stream_.ref().native()),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_.ref().native()), "cudaStreamSynchronize");
    ready(i, stream_.ref().handle());
  }

  /// Adds the gradients, which are reduced.
  void update() {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      check(cudaMemcpy(host_.data(), gradients_[i].data(), gradients_[i].bytes(), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
      for (std::size_t k = 0; k < count; ++k)
        kept[i][k] += std::round(host_[k]);  // a mean over three ranks need not be exact
    }
    copy_to_device();
  }

  /// How many values are not what that many steps make, on the host or on the device.
  std::size_t wrong(std::uint64_t steps) {
    std::array<float, 7> sums{};
    for (std::size_t r = 0; r < sums.size(); ++r)
      for (std::uint64_t step = 0; step < steps; ++step)
        sums[r] += mean_gradient(step, 0, r);
    std::size_t found = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      check(cudaMemcpy(host_.data(), values_[i].data(), values_[i].bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      for (std::size_t k = 0; k < count; ++k)
        found += kept[i][k] != sums[(i + k) % sums.size()] || host_[k] != kept[i][k];
    }
    return found;
  }

  std::array<std::vector<float>, layers> kept;

 private:
  std::vector<dtrain::stream::cuda::DeviceBuffer> values_;
  std::vector<dtrain::stream::cuda::DeviceBuffer> gradients_;
  std::vector<float> host_ = std::vector<float>(count);
  std::vector<dtrain::Parameter> list_;
  dtrain::stream::cuda::Stream stream_;
};

/// Of the current device, whoever uses it.
double used_mib() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(total - free) / (1 << 20);
}

int train(const dtrain::Elastic<Policy>& job, const Options& options) {
  const auto seconds = [began = Clock::now()] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  const int worker = job.local_rank();
  Model model;
  std::vector<float> lives(1);  // how many processes have been worker 1
  bool is_new = worker == 1;
  double used_before = 0;
  double used = 0;
  for (std::size_t i = 0; i < layers; ++i)
    job.keep({{model.parameters()[i].name, dtrain::tensor_view(model.kept[i])}});
  job.keep({{"lives", dtrain::tensor_view(lives)}});
  return job.train([&](const Group& group) {
    model.copy_to_device();
    std::vector<float> newcomers{is_new ? 1.0F : 0.0F};
    group.all_reduce(newcomers, dtrain::ReduceOp::sum);
    dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = count * sizeof(float)}};
    const bool is_whole = group.world_size() == options.workers;
    const auto life = [&] { return static_cast<int>(lives[0]); };
    for (int step = 0; step < 20 || !is_whole || life() <= options.kills; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const bool is_fatal = is_whole && step >= 10 && life() <= options.kills;
      try {
        ddp.backward([&](dtrain::Ready ready) {
          for (std::size_t i = layers; i-- > 0;) {
            if (is_fatal && worker == 1 && i == layers / 2) static_cast<void>(::kill(::getpid(), SIGKILL));
            model.compute(i, job.step(), group, ready);
          }
        });
      } catch (const dtrain::JobFailed&) {
        if (options.breaks && worker == 2 && life() == 1) support::break_current_device();
        throw;
      }
      job.commit([&] {
        model.update();
        if (step == 0) lives[0] += newcomers[0];
      });
      is_new = false;
      if (step == 5 && is_whole && worker == 0) {
        used = used_mib();
        if (life() == 1) used_before = used;
        std::printf("attempt %d of process %d of worker 1, after %.1f s: memory used %.0f MiB\n",
                    static_cast<int>(job.attempt()), life(), seconds(), used);
      }
    }
    const std::size_t wrong = model.wrong(job.step());
    const bool is_right = wrong == 0 && used - used_before <= options.most_growth;
    if (wrong != 0)
      std::printf("worker %d: %zu values are wrong after %d steps\n", worker, wrong, static_cast<int>(job.step()));
    if (worker == 0) {
      std::printf(
          "elastic: %d kills, %d restarts, sums %s, memory used %.0f MiB before, %.0f MiB after, %.1f s in all\n",
          options.kills, life() - 1, wrong == 0 ? "right" : "wrong", used_before, used, seconds());
    }
    return is_right ? 0 : 1;
  });
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
    return train(job, Options(arguments));
  });
}

#else

int main() {
  std::puts("built without NCCL");
  return 77;
}
#endif
