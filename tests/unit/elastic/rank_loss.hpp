#pragma once
/// @file
/// Elastic jobs whose ranks are threads that are lost at named points: the connections of a lost rank end, as those of
/// a killed process do, and its thread does nothing more while the job lives.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/elastic.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/cutting_proxy.hpp"
#include "support/elastic_model.hpp"
#include "support/elastic_process.hpp"
#include "support/thread_ranks.hpp"
#include "unit/elastic/losses.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

namespace rank_loss {

/// Weights that are whole numbers. The ranks' gradients differ, but their mean depends on the step and on the weights
/// only: the weights after a step are those of one rank, exactly, whatever the ranks were.
struct Model : support::LayeredModel<700> {
  Model() : LayeredModel(0) {}

  void forward() {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t j = 0; j < width; ++j) {
        activations[layer][j] = static_cast<int>(values[layer][j]) % 3;
      }
    }
  }
  void compute(std::size_t layer, std::uint64_t step, int rank, int ranks) {
    for (std::size_t j = 0; j < width; ++j) {
      const int mean = 1 + static_cast<int>((step + layer + j) % 5) + activations[layer][j];
      const int apart = (2 * rank - (ranks - 1)) * (1 + static_cast<int>(j % 2));
      gradients[layer][j] = static_cast<float>(mean + apart);
    }
  }
  /// From the sums of the gradients.
  void update(std::size_t layer, int ranks) {
    for (std::size_t j = 0; j < width; ++j) {
      values[layer][j] += gradients[layer][j] / static_cast<float>(ranks);
    }
  }

  std::array<std::array<int, width>, layers> activations{};
};

using BoundModel = support::Bound<Model>;

/// The digest of the weights after so many steps of one rank. Threads: any.
inline std::uint32_t expected_digest(std::uint64_t steps) {
  static std::mutex mutex;
  static Model model;
  static std::vector<std::uint32_t> digests{model.digest()};
  const std::lock_guard lock(mutex);
  while (digests.size() <= steps) {
    model.forward();
    for (std::size_t i = 0; i < Model::layers; ++i) {
      model.compute(i, digests.size() - 1, 0, 1);
    }
    for (std::size_t i = 0; i < Model::layers; ++i) {
      model.update(i, 1);
    }
    digests.push_back(model.digest());
  }
  return digests[steps];
}

class Worker;
/// The worker that this thread works for.
inline thread_local Worker* this_worker = nullptr;
inline void at(Point point);

/// Shared memory whose ranks may be lost at their points. An all-reduce is two, one of each half.
struct LossyMemory : dtrain::backend::SharedMemory {
  using Base = dtrain::backend::SharedMemory;

  struct Communicator : Base::Communicator {
    using Inner = Base::Communicator;
    using Inner::enqueue;
    explicit Communicator(Inner&& inner) : Inner(std::move(inner)) {}

    void enqueue(const dtrain::backend::AllReduce& call, Stream stream);
    void enqueue(const dtrain::backend::AllReduceWithSquares& call, Stream stream) = delete;  // steps take the other
    Communicator split_blocking(int color, int key, dtrain::Deadline deadline) {
      return Communicator(Inner::split_blocking(color, key, deadline));
    }
    Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline deadline) {
      at(Point::allocating);
      return Inner::allocate_blocking(bytes, deadline);
    }
  };

  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, dtrain::Deadline deadline) {
    at(Point::opening);
    return Communicator(Base::open_blocking(context, deadline));
  }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, LossyMemory>;
using Group = dtrain::ProcessGroup<Policy>;

/// One worker on a thread of its own, behind a proxy that ends its connections when it is lost.
class Worker final : private dtrain::elastic::AttemptBody {
 public:
  Worker(const rendezvous_test::FormationProcess& launcher, int slot, const Case& of, Losses& losses)
      : case_(of),
        slot_(slot),
        losses_(losses),
        proxy_(launcher.address().port),
        process_(process()),
        worker_(process_),
        thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    release();
    join();
  }

  bool is_lost() const { return is_lost_; }
  bool has_ended() const { return has_ended_; }
  int slot() const { return slot_; }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  /// Lets a lost worker go on, and find its job over.
  void release() {
    proxy_.refuse(false);
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }

  /// @name Of a worker that has ended
  /// @{
  const std::string& text() const { return text_; }  ///< of its exception
  std::uint64_t steps() const { return worker_.step(); }
  std::uint32_t digest() const { return model_.digest(); }
  /// @}

  /// For the worker's threads: does not return while the job lives if the worker is lost here.
  void at(Point point) noexcept {
    if (!losses_.takes(point, slot_, worker_.step(), attempt_)) return;
    is_lost_ = true;
    proxy_.refuse(true);
    proxy_.cut(dtrain_test::CuttingProxy::How::end);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_released_; });
  }
  bool is_in_step() const { return is_in_step_; }

 private:
  /// The group of a transfer.
  struct Transfer {
    Worker& worker;
    Group group;
    mutable int sent = 0;

    int rank() const { return group.rank(); }
    int world_size() const { return group.world_size(); }
    template <class Cards>
    void all_reduce(Cards& all, dtrain::ReduceOp op) const {
      group.all_reduce(all, op);
    }
    Transfer split(int color) const { return {worker, group.split(color)}; }
    void broadcast(dtrain::BufferView values, int root) const {
      group.broadcast(values, root);
      if (++sent != 1) return;
      worker.at(group.rank() == 0 ? Point::half_sent : Point::half_received);
    }
  };

  dtrain::launch::RankProcess process() const {
    return support::elastic_process(proxy_.port(), slot_, workers, std::chrono::seconds(120));
  }

  void run() {
    this_worker = this;
    try {
      worker_.state_before_train().keep(dtrain::parameter_values(model_.parameters()), false);
      worker_.run(*this, "");
    } catch (const dtrain::elastic::WorkerEnded&) {
      text_ = "the job has finished without it";
    } catch (const std::exception& error) {
      text_ = error.what();
    }
    has_ended_ = true;
  }

  dtrain::group::RankContext& join(const dtrain::rendezvous::ControlPlaneOptions& options) override {
    attempt_ = static_cast<std::uint64_t>(options.identity.attempt);
    at(Point::assignment);
    if (losses_.takes(Point::join, slot_, worker_.step(), attempt_)) {
      is_lost_ = true;
      proxy_.cut_behind(dtrain::rendezvous::MessageKind::join);
    }
    group_.emplace(Group::join(options));
    return *dtrain::group::GroupAccess::of(*group_).rank_context();
  }
  void transfer(dtrain::elastic::KeptState& state, const dtrain::rendezvous::Assignment& assignment,
                const dtrain::rendezvous::TrainingProgress& own) override {
    losses_.transfers(slot_, attempt_, own.has_trained());
    dtrain::elastic::transfer_state(Transfer{*this, *group_}, state, assignment, own);
  }
  int call() override {
    has_returned_ = false;
    at(Point::entering);
    dtrain::DdpOptions options;
    options.reduce_op = dtrain::ReduceOp::sum;
    options.bucket_bytes = 0;
    options.progress = case_.progress;
    if (case_.binds) {
      train(dtrain::DistributedDataParallel{model_, *group_, options});
    } else {
      train(dtrain::DistributedDataParallel{static_cast<Model&>(model_), *group_, options});
    }
    has_returned_ = true;
    return 0;
  }
  void drop() noexcept override {
    is_in_step_ = false;
    group_.reset();
    if (!std::exchange(has_returned_, false)) at(Point::announce);
  }

  template <class Ddp>
  void train(Ddp ddp) {
    const int rank = group_->rank();
    const int ranks = group_->world_size();
    if (worker_.step() < most_steps_) losses_.note("a commit was taken back");
    while (group_->all_reduce(losses_.ends ? 1.0F : 0.0F, dtrain::ReduceOp::max) == 0) {
      at(Point::before_forward);
      model_.forward();
      at(Point::after_forward);
      is_in_step_ = true;
      dtrain::Step step = ddp.begin();
      backward(step.ready(), rank, ranks);
      at(Point::finish);
      step.finish();
      is_in_step_ = false;
      worker_.commit([&] {
        model_.update(0, ranks);
        at(Point::optimizer);
        model_.update(1, ranks);
        model_.update(2, ranks);
        at(Point::commit);
      });
      most_steps_ = worker_.step();
      if (model_.digest() != expected_digest(most_steps_)) {
        losses_.note("the weights of worker " + std::to_string(slot_) + " after step " + std::to_string(most_steps_) +
                     ", rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " in attempt " +
                     std::to_string(attempt_) + ", are not those of an undisturbed training");
      }
      if (!is_lost_) losses_.committed(attempt_, ranks);
      std::this_thread::sleep_for(std::chrono::microseconds(300));  // other jobs of the test want a core, too
    }
  }

  void backward(dtrain::Ready ready, int rank, int ranks) {
    const auto pass = [&] {
      for (std::size_t layer = Model::layers; layer-- > 0;) {
        model_.compute(layer, worker_.step(), rank, ranks);
        ready(layer);
        if (layer + 1 == Model::layers) at(Point::first_ready);
      }
      at(Point::last_ready);
    };
    const auto must_not_throw = [&]() noexcept {
      this_worker = this;
      pass();
    };
    switch (case_.caller) {
      case Caller::program: return pass();
      case Caller::may_not_throw: return must_not_throw();
      case Caller::thread: return std::thread(must_not_throw).join();
    }
  }

  const Case case_;
  const int slot_;
  Losses& losses_;
  dtrain_test::CuttingProxy proxy_;
  const dtrain::launch::RankProcess process_;
  dtrain::elastic::ElasticWorker worker_;
  BoundModel model_;
  std::optional<Group> group_;
  std::atomic<std::uint64_t> attempt_{0};
  std::uint64_t most_steps_ = 0;
  bool has_returned_ = false;
  std::atomic<bool> is_in_step_{false};
  std::atomic<bool> is_lost_{false};
  std::atomic<bool> has_ended_{false};
  std::string text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_released_ = false;
  std::thread thread_;  ///< last: it uses the others
};

inline void at(Point point) {
  if (this_worker != nullptr) this_worker->at(point);
}

inline void LossyMemory::Communicator::enqueue(const dtrain::backend::AllReduce& call, Stream stream) {
  Worker* const worker = this_worker;
  const bool is_of_step = worker != nullptr && worker->is_in_step();
  if (is_of_step) worker->at(Point::launch);
  dtrain::backend::AllReduce first = call;
  dtrain::backend::AllReduce second = call;
  first.input.count = first.output.count = call.input.count / 2;
  second.input.count = second.output.count = call.input.count - first.input.count;
  second.input.data += first.input.bytes();
  second.output.data += first.output.bytes();
  Inner::enqueue(first, stream);
  stream.enqueue([worker, is_of_step]() noexcept {
    if (is_of_step) worker->at(Point::half_reduced);
  });
  Inner::enqueue(second, stream);
}

/// Runs a case. @returns what was wrong; empty if all was well
inline std::string run(const Case& of) {
  const int newcomer = of.newcomer();
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = newcomer < 0 ? 1 : 2;
  sizes.max_workers = workers;
  if (newcomer >= 0) sizes.first_formation = std::chrono::milliseconds(1);
  sizes.collect = std::chrono::milliseconds(1);
  sizes.least_resize_gap = std::chrono::milliseconds(0);
  sizes.longest_bar = std::chrono::seconds(0);
  sizes.reconnect_timeout = std::chrono::milliseconds(1);  // nobody says that the thread of a worker has ended
  Losses losses(of);
  rendezvous_test::FormationProcess launcher(sizes);
  std::vector<std::unique_ptr<Worker>> all;
  const auto start = [&](int slot) { all.push_back(std::make_unique<Worker>(launcher, slot, of, losses)); };
  const support::Watchdog watchdog(std::chrono::seconds(60), [&] {
    std::fprintf(stderr, "no end: %s, %zu workers\n", of.text().c_str(), all.size());
    for (const auto& each : all) {
      std::fprintf(stderr, "  worker %d%s%s, after %d steps\n", each->slot(), each->is_lost() ? ", lost" : "",
                   each->has_ended() ? (", ended: " + each->text()).c_str() : "", static_cast<int>(each->steps()));
    }
  });

  for (int slot = 0; slot < workers; ++slot) {
    if (slot != newcomer) start(slot);
  }
  if (newcomer >= 0) {
    losses.wait_until([](const Losses::Facts& facts) { return facts.last_attempt > 0; });
    start(newcomer);
  }
  const std::size_t planned = of.second ? 2 : 1;
  std::size_t replaced = 0;
  while (replaced < planned) {
    std::vector<Losses::Lost> lost;
    losses.wait_until([&](const Losses::Facts& facts) {
      lost = facts.lost;
      if (lost.size() == replaced) return false;
      const bool too_few_are_left =
          workers + static_cast<int>(replaced) - static_cast<int>(lost.size()) < sizes.min_workers;
      return !of.replaces_late || too_few_are_left || facts.last_attempt > lost.back().attempt;
    });
    for (; replaced < lost.size(); ++replaced) {
      start(lost[replaced].slot);
    }
  }
  losses.wait_until([&](const Losses::Facts& facts) { return facts.last_whole > facts.lost.back().attempt; });
  losses.ends = true;
  for (const auto& each : all) {
    if (each->is_lost()) continue;
    each->join();
    if (!each->text().empty()) losses.note("worker " + std::to_string(each->slot()) + " threw: " + each->text());
    if (each->digest() != expected_digest(each->steps())) losses.note("a worker ends with other weights");
  }
  for (const auto& each : all) {  // the lost ones find the job over
    each->release();
    each->join();
  }
  return losses.problem();
}

}  // namespace rank_loss
