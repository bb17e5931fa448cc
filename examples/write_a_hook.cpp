// A gradient hook of one's own: no rank contributes a longer gradient than the others may, whatever its samples are.
//   write_a_hook --nproc-per-node=2

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// Scales each gradient of this rank down to a norm of at most `longest`, then averages over the ranks.
struct ClipEachRank {
  double longest = 1;

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    const auto clip = [gradients = bucket.gradients, longest = longest]() noexcept {
      for (const dtrain::BucketGradient& gradient : gradients) {
        double square = 0;
        for (const float element : gradient.view.as<float>()) {
          square += static_cast<double>(element) * static_cast<double>(element);
        }
        const auto factor = static_cast<float>(longest / std::max(longest, std::sqrt(square)));
        for (float& element : gradient.view.as<float>()) {
          element *= factor;
        }
      }
    };
    bucket.stream.enqueue(clip);  // on the thread that communicates, before the all-reduce
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
};

struct Model {
  std::vector<float> value = std::vector<float>(4);
  std::vector<float> gradient = std::vector<float>(4);
  std::vector<dtrain::Parameter> parameters() {
    return {{"weights", dtrain::tensor_view(value), dtrain::tensor_view(gradient)}};
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    Model model;
    dtrain::DistributedDataParallel ddp{model, group, {}, ClipEachRank{.longest = 2}};
    ddp.backward([&](dtrain::Ready ready) {
      for (float& element : model.gradient) {
        element = group.rank() == 0 ? 1.0F : 1000.0F;  // the norm is 2 on rank 0, and 2,000 on the others
      }
      ready(0);
    });
    std::printf("the averaged gradient is %.3f %.3f %.3f %.3f\n", static_cast<double>(model.gradient[0]),
                static_cast<double>(model.gradient[1]), static_cast<double>(model.gradient[2]),
                static_cast<double>(model.gradient[3]));
    return 0;
  });
}
