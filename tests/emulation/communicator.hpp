#pragma once
/// @file
/// A rank's end of an emulated communicator.

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "delays.hpp"
#include "launch_order.hpp"
#include "reduction.hpp"
#include "segment.hpp"
#include "stream.hpp"

namespace emulation {

/// An operator that a program made (ncclRedOpCreatePreMulSum).
struct UserOperator {
  bool is_used = false;
  ncclDataType_t type = ncclFloat32;
  double scalar = 1;
  const void* scalar_address = nullptr;  // read when the operation runs, where it is not null
};

/// Blocking: while hold_launches says so.
void wait_while_launches_are_held() noexcept;

/// Lives until it has been destroyed or aborted and the last operation that was issued has come to its place.
class Communicator {
 public:
  Communicator(int rank, int size, int device, bool blocking);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int device() const noexcept { return device_; }
  bool is_blocking() const noexcept { return blocking_; }
  /// Whether its operations start in the device's order.
  bool orders_launches() const noexcept { return orders_launches_; }
  void set_orders_launches(bool orders) noexcept { orders_launches_ = orders; }

  /// Joins the other ranks on a thread of its own; state() tells how it ended.
  void begin_init(const ncclUniqueId& id);
  /// Agrees on the parts of a split with the parent's other ranks on a thread of its own, then joins those of its part;
  /// without a `child` it only tells the others that this rank has none. The handle is written late, of a non-blocking
  /// parent a moment after its polls no longer say ncclInProgress, as users of NCCL saw (NVIDIA/nccl#1472).
  static void begin_split(Communicator& parent, Communicator* child, ncclComm_t* handle, int color, int key);
  /// Registers memory with all ranks on a thread of its own. The handle is written late, as that of a split.
  void begin_window(void* memory, std::atomic_ref<ncclWindow_t> window);
  /// Waits on a thread of its own for what was issued, and for no other rank.
  void begin_finalize();
  void abort();
  /// Lets go of the handle; nobody may use it any more. Blocking: until all ranks of the node are closing theirs, whose
  /// connections NCCL's proxy serves until then (src/proxy.cc, ncclProxyService); a process that has ended is closed.
  void release();

  ncclResult_t state() const noexcept;
  void fail(ncclResult_t error, const std::string& text);
  const char* last_error() const noexcept { return text_.data(); }
  /// Blocking: until the thread that initialises, splits or finalises has come to an end.
  void block_while_in_progress() const noexcept;
  bool is_aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  bool is_finalized() const noexcept { return finalized_; }

  struct Launch {
    std::uint32_t algorithms;  // a bit for each
    bool is_captured;
    LaunchingThread thread;
  };
  /// Runs `enqueue` as NCCL launches (src/group.cc, ncclGroupEndInternal): in a thread of its own with the
  /// communicator's device, in progress until then; of a blocking communicator, or one rank, in the caller's. The first
  /// time of an algorithm it connects: waits until all ranks have come to it, and allocates. The communicator fails
  /// where another thread launches on the device at the same time, in an order that bears one: see LiveLaunch.
  template <class Enqueue>
  void launch(Launch wanted, Enqueue enqueue) {
    if (size_ == 1) return enqueue();
    if (blocking_) {
      if (connect(wanted.algorithms)) enqueue_connected(wanted, enqueue);
      return;
    }
    for (std::thread& ended : helpers_)
      ended.join();
    helpers_.clear();
    const auto body = [this, wanted, enqueue] {
      delay(Slow::launch, device_);
      take_device();
      if (connect(wanted.algorithms)) enqueue_connected(wanted, enqueue);
    };
    begin(body, [] {});
  }

  /// After a call on a non-blocking communicator: what it returns, and that the next polls say so too.
  ncclResult_t in_progress_for_a_while() noexcept;
  /// What a poll says.
  ncclResult_t polled() noexcept;

  /// Blocking: while as many operations are in flight as limit_operations_in_flight says.
  void wait_for_proxy() const noexcept;
  /// The place of an operation among all of the communicator; held until finish().
  std::uint64_t issue() noexcept;
  bool has_work() const noexcept { return finished_.load() != issued_.load(); }
  /// Blocking: until all operations issued before have ended. False where the communicator was aborted.
  bool start(std::uint64_t place) noexcept;
  void finish(std::uint64_t place) noexcept;

  /// Waits at the segment's counter. False where the communicator was aborted, its device is broken or, if asked for, a
  /// rank has died.
  template <class IsDone>
  bool wait_for_ranks(IsDone is_done) noexcept {
    for (int tries = 0; tries < 100; ++tries) {
      if (is_done()) return true;
    }
    for (;;) {
      const std::uint32_t seen = segment_->counter.load(std::memory_order_relaxed);
      if (is_done()) return true;
      if (is_aborted() || is_on_broken_device() || reports_dead_rank()) return false;
      park(segment_->counter, seen);
    }
  }
  template <class Condition>
  bool wait_for_all(Condition condition) noexcept {
    return wait_for_ranks([&] {
      for (int rank = 0; rank < size_; ++rank) {
        if (!condition(cell(rank))) return false;
      }
      return true;
    });
  }
  /// Blocking: until the communicator is aborted.
  void hang() noexcept;
  void notify_ranks() noexcept { notify(segment_->counter); }

  Segment& segment() noexcept { return *segment_; }
  RankCell& cell(int rank) noexcept { return segment_->cells[static_cast<std::size_t>(rank)]; }
  RankCell& own() noexcept { return cell(rank_); }
  std::byte* chunk(int rank) noexcept { return segment_->chunks[static_cast<std::size_t>(rank)].data(); }
  std::uint64_t steps = 0;  // of collectives so far; the operation's that runs

  std::array<UserOperator, 16> operators;
  std::atomic<int> calls_inside{0};

 private:
  ~Communicator();
  /// Runs on a thread of NCCL's; the communicator is in progress meanwhile, and no longer during `afterwards`.
  template <class Body, class Afterwards>
  void begin(Body body, Afterwards afterwards) {
    helpers_running_.fetch_add(1);
    helpers_.emplace_back([this, body, afterwards] {
      body();
      helpers_running_.fetch_sub(1);
      notify(counter_);
      afterwards();
    });
  }
  template <class Enqueue>
  void enqueue_connected(const Launch& wanted, const Enqueue& enqueue) {
    std::optional<LiveLaunch> live;
    if (orders_launches_ && !wanted.is_captured) live.emplace(device_, wanted.thread);
    wait_while_launches_are_held();
    enqueue();
    if (live && live->is_fatal_race()) fail(ncclInvalidUsage, LiveLaunch::race_text);
  }
  void take_device() noexcept;
  bool connect(std::uint32_t algorithms);
  bool allocate_connections();
  bool take_proxy_pool();
  void join(const ncclUniqueId& id);
  void say_closing() noexcept;
  void wait_for_node() noexcept;
  bool agree_on_split(Communicator* child, int color, int key, std::uint32_t round, ncclUniqueId& id);
  /// Of a child: finds its ranks among the parent's.
  bool take_part(Communicator& parent, std::uint32_t round, ncclUniqueId& id);
  void finalize();
  bool is_on_broken_device() const noexcept;
  bool reports_dead_rank() noexcept;
  void unreference() noexcept;
  void set_state(ncclResult_t state) noexcept;

  int rank_;  // of a split's part: known when the ranks have agreed
  int size_;
  const int device_;
  const bool blocking_;
  bool orders_launches_;
  bool finalized_ = false;
  bool never_completes_ = false;
  bool uses_network_ = false;    // known when the ranks have joined
  bool has_proxy_pool_ = false;  // of the thread that connects; then of who releases
  std::uint32_t splits_ = 0;
  std::uint32_t windows_ = 0;
  Segment* segment_ = nullptr;
  std::vector<std::thread> helpers_;
  std::vector<void*> connections_;  // device memory
  std::array<char, 256> text_{};
  std::atomic<int> state_{ncclInProgress};
  std::atomic<int> helpers_running_{0};
  std::atomic<int> polls_left_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> connected_{false};  // to all ranks
  std::atomic<int> references_{1};
  std::atomic<int> running_{0};
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint64_t> served_{0};  // by the proxy; not those that an abort ended
  mutable std::atomic<std::uint32_t> counter_{0};
};

/// NCCL's faults and settings, as tests set them.
void count_initialisation() noexcept;
void count_kernel_of_one_rank() noexcept;
bool init_is_to_hang(int device) noexcept;
bool init_is_to_fail(int device) noexcept;
/// Of memory, which go with the communicator.
void forget_registrations(const Communicator& communicator) noexcept;
/// The fault that the operation starting now is to have; -1 for none.
int fault_of_next_operation(int device) noexcept;
bool mismatches_are_reported() noexcept;
bool dead_ranks_are_reported() noexcept;
int polls_in_progress() noexcept;

}  // namespace emulation
