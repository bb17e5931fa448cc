#pragma once
/// @file
/// TreeWork: work of a step that adds the micro-batches' gradients of all ranks in the order of the tree.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/micro_batches/sum_tree.hpp"
#include "dtrain/ddp/micro_batches/tree_sums.hpp"
#include "dtrain/ddp/reduction/reducing_work.hpp"
#include "dtrain/ddp/step_options.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The nodes of all ranks: who sends which, and how they are added.
struct TreeLayout {
  /// @param nodes of each rank
  TreeLayout(std::vector<std::vector<TreeNode>> nodes, int rank);

  std::vector<std::vector<TreeNode>> of_ranks;
  std::size_t rank;
  std::size_t rounds = 0;  ///< the most nodes of a rank: its j-th node travels in round j
  std::size_t nodes = 0;   ///< number of all ranks' nodes
  std::vector<TreeMerge>
      merges;            ///< additions of received slices, which lie round by round, and in a round rank by rank
  std::size_t root = 0;  ///< the slice that then has the whole sum
};

/// The exchanges of a bucket's nodes. Each rank gets its slice of every node, and sends its slice of the sum.
struct TreeExchange {
  TreeExchange(const TreeLayout& layout, std::size_t elements);

  backend::BlockRange own;  ///< this rank's slice of the bucket
  std::vector<backend::BlockExchange> rounds;
  backend::BlockExchange gather;
};

/// The norm of gradients whose bits do not depend on the plan of the buckets: the squares of each parameter are added
/// alone, then in the order of the parameters.
double sum_of_squares(const GradientTable& gradients) noexcept;

/// Work for a stream: adds the received slices of all nodes. Lifetime: the layout outlives it.
struct TreeAddition {
  const TreeLayout* layout;
  std::byte* received;
  BufferView own;  ///< gets the sum
  void operator()() const noexcept;
};

/// Lifetime: the table, the sums and the layout outlive it. Threads: as StepWork.
template <backend::CanExchangeBlocks C>
class TreeWork final : public ReducingWork<C> {
 public:
  using typename ReducingWork<C>::Stream;
  using typename ReducingWork<C>::Norms;
  using typename ReducingWork<C>::Buckets;

  TreeWork(Norms& norms, const BucketPlan& plan, const GradientTable& gradients, const TreeSums& sums,
           const TreeLayout& layout)
      : ReducingWork<C>(norms), plan_(&plan), gradients_(&gradients), sums_(&sums), layout_(&layout) {}

  StepNeeds begin(Buckets& buckets, const StepOptions&) override {
    this->set_buckets(buckets);
    buckets_ = &buckets;
    std::size_t most = 0;
    for (std::size_t bucket = 0; layout_->of_ranks.size() > 1 && bucket < plan_->buckets.size(); ++bucket) {
      const PlannedBucket& planned = plan_->buckets[bucket];
      const TreeExchange& exchange = exchange_of(planned.bytes / size_bytes(planned.dtype));
      most = std::max<std::size_t>(most, exchange.own.count * size_bytes(planned.dtype));
    }
    if (received_.size() < most * layout_->nodes) received_.resize(most * layout_->nodes);
    return {.items_per_bucket = layout_->rounds + 2, .skips_buffer_broadcast = true};
  }

  void launch(std::size_t bucket, const BufferView& range, ReduceOp, C& channel, Stream stream) override {
    if (range.count == 0 || channel.size() == 1) return;  // one rank has the whole sum in its arena
    const TreeExchange& exchange = exchange_of(range.count);
    const std::size_t own_nodes = layout_->of_ranks[layout_->rank].size();
    std::byte* into = received_.data();
    for (std::size_t round = 0; round < layout_->rounds; ++round) {
      BufferView sent = range;
      if (round + 1 < own_nodes) sent.data = sums_->finished(round) + plan_->buckets[bucket].offset;
      if (round >= own_nodes) sent.count = 0;
      std::uint64_t elements = 0;
      for (const backend::BlockRange& block : exchange.rounds[round].received)
        elements += block.count;
      channel.enqueue(backend::ExchangeBlocks{exchange.rounds[round], sent, {into, elements, range.dtype, {}}}, stream);
      into += elements * size_bytes(range.dtype);
    }
    BufferView own = range;
    own.data += exchange.own.offset * size_bytes(range.dtype);
    own.count = exchange.own.count;
    stream.enqueue(TreeAddition{layout_, received_.data(), own});
    channel.enqueue(backend::ExchangeBlocks{exchange.gather, own, range}, stream);
  }

  /// Sets what finish() also reduces: losses are added, buffers become rank 0's.
  void send(BufferView losses, BufferView buffers) noexcept {
    losses_ = losses;
    packed_buffers_ = buffers;
  }

  bool finish(C& channel, Stream stream) override {
    if (channel.size() > 1 && losses_.count + packed_buffers_.count != 0) {
      if (losses_.count != 0) channel.enqueue(backend::AllReduce{losses_, losses_, ReduceOp::sum}, stream);
      if (packed_buffers_.count != 0) channel.enqueue(backend::Broadcast{packed_buffers_, 0}, stream);
      typename Stream::Event done;
      stream.record(done);
      buckets_->wait_for_event(done);
    }
    const bool updates = ReducingWork<C>::finish(channel, stream);
    double squares = this->sum_of(0) != nullptr ? sum_of_squares(*gradients_) : 0;
    for (std::size_t bucket = 0; bucket < plan_->buckets.size(); ++bucket) {
      if (double* const sum = this->sum_of(bucket)) *sum = std::exchange(squares, 0);
    }
    return updates;
  }

 private:
  /// Buckets of as many elements have the same exchange. A plan that changes adds some.
  const TreeExchange& exchange_of(std::size_t elements) {
    return exchanges_.try_emplace(elements, *layout_, elements).first->second;
  }

  const BucketPlan* plan_;
  const GradientTable* gradients_;
  const TreeSums* sums_;
  const TreeLayout* layout_;
  Buckets* buckets_ = nullptr;
  std::map<std::size_t, TreeExchange> exchanges_;
  std::vector<std::byte> received_;  ///< slices of all nodes; one bucket's at a time
  BufferView losses_{}, packed_buffers_{};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <array>
#include <cstring>

#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED TreeLayout::TreeLayout(std::vector<std::vector<TreeNode>> all, int own_rank)
    : of_ranks(std::move(all)), rank(static_cast<std::size_t>(own_rank)) {
  std::vector<TreeNode> received;
  for (const std::vector<TreeNode>& each : of_ranks)
    rounds = std::max(rounds, each.size());
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const std::vector<TreeNode>& each : of_ranks) {
      if (round < each.size()) received.push_back(each[round]);
    }
  }
  nodes = received.size();
  std::vector<TreeNode> sorted = received;
  std::sort(sorted.begin(), sorted.end());
  const auto place_of = [&](std::size_t at) {
    return static_cast<std::size_t>(std::find(received.begin(), received.end(), sorted[at]) - received.begin());
  };
  for (const TreeMerge& merge : tree_merges(sorted))
    merges.push_back({place_of(merge.into), place_of(merge.from)});
  root = place_of(0);
}

DTRAIN_DEFINED TreeExchange::TreeExchange(const TreeLayout& layout, std::size_t elements) {
  const std::size_t ranks = layout.of_ranks.size();
  std::vector<backend::BlockRange> slices;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    slices.push_back(backend::piece_of(elements, rank, ranks));
  own = slices[layout.rank];
  for (std::size_t round = 0; round < layout.rounds; ++round) {
    backend::BlockExchange exchange;
    const auto sends = [&](std::size_t rank) { return round < layout.of_ranks[rank].size(); };
    exchange.sent = sends(layout.rank) ? slices : std::vector<backend::BlockRange>(ranks);
    std::uint64_t offset = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      exchange.received.push_back({offset, sends(rank) ? own.count : 0});
      offset += exchange.received.back().count;
    }
    rounds.push_back(std::move(exchange));
  }
  gather.kind = backend::OperationKind::all_gather_v;
  gather.sent.assign(ranks, {0, own.count});
  gather.received = std::move(slices);
}

DTRAIN_DEFINED void TreeAddition::operator()() const noexcept {
  if (own.count == 0) return;
  const kernels::Reduction sum = kernels::Reduction::of(own.dtype, ReduceOp::sum);
  for (const TreeMerge& merge : layout->merges) {
    std::byte* const into = received + merge.into * own.bytes();
    const std::array<const std::byte*, 2> sources{into, received + merge.from * own.bytes()};
    sum(sources, std::span(&into, 1), own.count);
  }
  std::memcpy(own.data, received + layout->root * own.bytes(), own.bytes());
}

DTRAIN_DEFINED double sum_of_squares(const GradientTable& gradients) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const TensorView& view = gradients.view(i);
    sum +=
        kernels::sum_of_squares(view.dtype, gradients[i].place, static_cast<std::size_t>(view.shape.element_count()));
  }
  return sum;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
