// Adaptive summation as a gradient hook: the gradients a and b of two ranks become (1 - ab / 2aa) a + (1 - ab / 2bb) b,
// their sum if they are orthogonal, and their average if they are equal. So do the results of pairs, fours, and so on.
// Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924, 2020.
//   adasum --nproc-per-node=4

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <span>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// Work of a stream, for the vectors a and b of two groups of ranks. This rank has the same elements of both.
struct Pair {
  std::span<const dtrain::BucketGradient> gradients;
  std::span<float> own;   ///< of its group's vector, in the bucket
  const float* received;  ///< of the other's
  bool is_second;         ///< whether its group's vector is b
  double* products;       ///< of each gradient: aa, bb, ab; summed over both groups between the calls

  void multiply() const noexcept {
    for_each_gradient([this](double* sums, std::span<float> mine, const float* other) {
      for (std::size_t k = 0; k < mine.size(); ++k) {
        const double x = static_cast<double>(mine[k]);
        const double y = static_cast<double>(other[k]);
        sums[is_second ? 1 : 0] += x * x;
        sums[is_second ? 0 : 1] += y * y;
        sums[2] += x * y;
      }
    });
  }

  void combine() const noexcept {
    for_each_gradient([this](const double* sums, std::span<float> mine, const float* other) {
      const auto factor = [sums](double square) { return square == 0 ? 1 : 1 - sums[2] / (2 * square); };
      const double x = factor(sums[is_second ? 1 : 0]);
      const double y = factor(sums[is_second ? 0 : 1]);
      for (std::size_t k = 0; k < mine.size(); ++k) {
        mine[k] = static_cast<float>(x * static_cast<double>(mine[k]) + y * static_cast<double>(other[k]));
      }
    });
  }

 private:
  /// Calls `act(products, own elements, received elements)` for each gradient that has elements on this rank.
  template <class F>
  void for_each_gradient(F act) const noexcept {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::span<float> all = gradients[i].view.as<float>();
      float* const begin = std::max(all.data(), own.data());
      float* const end = std::min(all.data() + all.size(), own.data() + own.size());
      if (begin < end) act(products + 3 * i, std::span<float>(begin, end), received + (begin - own.data()));
    }
  }
};

/// For a power of two of ranks, and f32 gradients in host memory. A rank sends as much as for an all-reduce.
class Adasum {
 public:
  std::string description() const { return "Adasum"; }

  /// Memory for the largest bucket of the plan: a stream runs one bucket's work after another's.
  template <class C>
  void plan(C& channel, const dtrain::ddp::BucketPlan& plan, dtrain::Deadline) {
    for (const dtrain::ddp::PlannedBucket& bucket : plan.buckets) {
      received_.resize(std::max(received_.size(), bucket.bytes / sizeof(float) / 2 + 1));
      const std::size_t rows = static_cast<std::size_t>(channel.size() + 1) / 2;
      products_.resize(std::max(products_.size(), rows * 3 * bucket.parameters.size()));
    }
  }

  /// Two exchanges, an all-reduce and two computations for each doubling.
  static std::uint64_t items_per_bucket(int ranks) noexcept {
    return 5 * static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(ranks)));
  }

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    if (!std::has_single_bit(static_cast<unsigned>(bucket.channel.size()))) {
      throw dtrain::Error(dtrain::Errc::unsupported, "Adasum combines pairs of ranks: start 1, 2, 4, 8, ... of them");
    }
    if (bucket.values.dtype != dtrain::DType::f32) {
      throw dtrain::Error(dtrain::Errc::unsupported, "Adasum combines f32 gradients: train in f32");
    }
    combine(bucket, 1, 0, bucket.values.count);
  }

 private:
  /// Combines `count` elements of this rank's group of `distance` ranks with those of the neighbouring group, in which
  /// a partner has the same elements. Each of the two combines one half, goes on with it in groups twice as large, and
  /// sends the result to its partner.
  template <class C>
  void combine(const dtrain::GradientBucket<C>& bucket, int distance, std::size_t begin, std::size_t count) {
    const int ranks = bucket.channel.size();
    const int rank = bucket.channel.rank();
    if (distance >= ranks) return;
    const bool is_second = rank / distance % 2 != 0;
    const int partner = is_second ? rank - distance : rank + distance;
    const std::size_t half = count / 2;
    const std::size_t own_begin = is_second ? begin + half : begin;
    const std::size_t own_count = is_second ? count - half : half;
    const dtrain::BufferView own = bucket.part(own_begin, own_count);
    const dtrain::BufferView other = bucket.part(is_second ? begin : begin + half, count - own_count);
    const dtrain::BufferView received = dtrain::buffer_view(std::span(received_).first(own_count));

    const std::size_t row = 3 * bucket.gradients.size();  // of each pair of groups
    const std::span<double> table(products_.data(), row * static_cast<std::size_t>(ranks / (2 * distance)));
    const Pair pair{bucket.gradients,
                    {reinterpret_cast<float*>(bucket.values.data) + own_begin, own_count},
                    received_.data(),
                    is_second,
                    table.data() + row * static_cast<std::size_t>(rank / (2 * distance))};
    bucket.channel.enqueue(dtrain::backend::SendRecv{other, partner, received, partner}, bucket.stream);
    bucket.compress([pair, table]() noexcept {
      std::fill(table.begin(), table.end(), 0.0);
      pair.multiply();
    });
    const dtrain::BufferView sums = dtrain::buffer_view(table);
    bucket.channel.enqueue(dtrain::backend::AllReduce{sums, sums, dtrain::ReduceOp::sum}, bucket.stream);
    bucket.compress([pair]() noexcept { pair.combine(); });
    combine(bucket, 2 * distance, own_begin, own_count);
    bucket.channel.enqueue(dtrain::backend::SendRecv{own, partner, other, partner}, bucket.stream);
  }

  std::vector<float> received_;
  std::vector<double> products_;
};

struct Model {
  std::vector<float> values = std::vector<float>(8);
  std::vector<float> gradients = std::vector<float>(8);

  std::vector<dtrain::Parameter> parameters() {
    const std::span all(values);
    const std::span slopes(gradients);
    return {{"equal", dtrain::tensor_view(all.first(4)), dtrain::tensor_view(slopes.first(4))},
            {"orthogonal", dtrain::tensor_view(all.last(4)), dtrain::tensor_view(slopes.last(4))}};
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    Model model;
    dtrain::DistributedDataParallel ddp{model, group, {}, Adasum{}};
    ddp.backward([&](dtrain::Ready ready) {
      for (int k = 0; k < 4; ++k) {
        model.gradients[static_cast<std::size_t>(k)] = 3;
        model.gradients[static_cast<std::size_t>(4 + k)] = k == group.rank() ? 2 : 0;
      }
      ready(0);
      ready(1);
    });
    std::string line;
    for (const float element : model.gradients) {
      line += " " + std::to_string(static_cast<int>(element));
    }
    std::printf("equal gradients and orthogonal ones have become%s\n", line.c_str());
    return 0;
  });
}
