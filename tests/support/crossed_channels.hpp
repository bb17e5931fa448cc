#pragma once
/// @file
/// What ranks may do in different orders on different channels, for ranks of any kind: nobody waits for ever.

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/distributed_data_parallel.hpp"

namespace support {

/// Parameters of one size; gradient i of rank r in step s of model m is a number that tells them all.
class CrossedModel {
 public:
  static constexpr std::size_t count = 5;

  CrossedModel(int number, std::size_t size) : number_(number) {
    for (std::size_t i = 0; i < count; ++i) {
      values_.emplace_back(size, 0.0F);
      gradients_.emplace_back(size, 0.0F);
    }
  }

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list;
    for (std::size_t i = 0; i < count; ++i) {
      const dtrain::Shape shape{static_cast<std::int64_t>(values_[i].size())};
      list.push_back({"p" + std::to_string(i), dtrain::tensor_view(values_[i].data(), shape),
                      dtrain::tensor_view(gradients_[i].data(), shape)});
    }
    return list;
  }

  void fill(std::size_t i, int rank, int step) {
    for (float& element : gradients_[i])
      element = value(i, rank, step);
  }

  /// Whether all gradients are the sums over `ranks` ranks.
  bool is_reduced(int ranks, int step) const {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank)
        sum += value(i, rank, step);
      for (const float element : gradients_[i]) {
        if (element != sum) return false;
      }
    }
    return true;
  }

 private:
  float value(std::size_t i, int rank, int step) const {
    return static_cast<float>(1000 * number_ + 100 * step + 10 * static_cast<int>(i) + rank);
  }

  int number_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> gradients_;
};

/// How one rank differs from the others.
enum class Crossing {
  ready,   ///< announce the second wrapper's gradients first
  finish,  ///< finish the second wrapper's step first
  both,
  collective,  ///< reduce over the group before, between or after the ends of the two steps
};

inline constexpr std::array<std::pair<const char*, Crossing>, 4> crossings{{{"ready", Crossing::ready},
                                                                            {"finish", Crossing::finish},
                                                                            {"both", Crossing::both},
                                                                            {"collective", Crossing::collective}}};

/// Two wrappers over `group`, several steps. @returns whether all gradients and sums were right
template <class P>
bool train_crossed(const dtrain::ProcessGroup<P>& group, Crossing crossing, dtrain::stream::host::Progress progress,
                   std::size_t size, int steps = 4) {
  CrossedModel one(1, size);
  CrossedModel two(2, size);
  const dtrain::DdpOptions options{
      .bucket_bytes = 0, .first_bucket_bytes = 0, .reduce_op = dtrain::ReduceOp::sum, .progress = progress};
  dtrain::DistributedDataParallel first{one, group, options};
  dtrain::DistributedDataParallel second{two, group, options};
  const int ranks = group.world_size();
  bool right = true;
  const auto sum_of_ranks = [&](int step) {
    std::array<double, 2> sum{static_cast<double>(group.rank()), static_cast<double>(step)};
    group.all_reduce(sum, dtrain::ReduceOp::sum);
    right = right && sum == std::array<double, 2>{ranks * (ranks - 1) / 2.0, static_cast<double>(ranks * step)};
  };
  for (int step = 0; step < steps; ++step) {
    const bool odd = (group.rank() + step) % ranks == 1;
    auto a = first.begin();
    auto b = second.begin();
    const auto announce = [&](CrossedModel& model, dtrain::Step& of, std::size_t i) {
      model.fill(i, group.rank(), step);
      of.ready(i);
    };
    const bool calls = crossing == Crossing::collective;
    const int when = (group.rank() + step) % 3;
    if (odd && (crossing == Crossing::ready || crossing == Crossing::both)) {
      for (std::size_t i = CrossedModel::count; i-- > 0;)
        announce(two, b, i);
      for (std::size_t i = CrossedModel::count; i-- > 0;)
        announce(one, a, i);
    } else {
      for (std::size_t i = CrossedModel::count; i-- > 0;) {
        announce(one, a, i);
        announce(two, b, i);
      }
    }
    if (calls && when == 1) sum_of_ranks(step);
    if (odd && (crossing == Crossing::finish || crossing == Crossing::both)) {
      b.finish();
      a.finish();
    } else {
      a.finish();
      if (calls && when == 2) sum_of_ranks(step);
      b.finish();
      if (calls && when == 0) sum_of_ranks(step);
    }
    right = right && one.is_reduced(ranks, step) && two.is_reduced(ranks, step);
  }
  return right;
}

}  // namespace support
