/// @file
/// The life of a communicator: its state, the order of its operations, its end.

#include "communicator.hpp"

#include "api.hpp"
#include "capture.hpp"
#include "device_memory.hpp"
#include "network.hpp"

namespace emulation {

Communicator::Communicator(int rank, int size, int device, bool blocking)
    : rank_(rank),
      size_(size),
      device_(device),
      blocking_(blocking),
      orders_launches_(orders_launches_by_environment()),
      never_completes_(init_is_to_hang(device)) {}

Communicator::~Communicator() {
  if (segment_ != nullptr) unmap_segment(segment_);
}

ncclResult_t Communicator::state() const noexcept {
  return static_cast<ncclResult_t>(state_.load(std::memory_order_acquire));
}

void Communicator::set_state(ncclResult_t state) noexcept {
  state_.store(state, std::memory_order_release);
  notify(counter_);
}

void Communicator::fail(ncclResult_t error, const std::string& text) {
  std::snprintf(text_.data(), text_.size(), "%s", text.c_str());
  set_state(error);
}

void Communicator::block_while_in_progress() const noexcept {
  wait_until(counter_,
             [this] { return state() != ncclInProgress && helpers_running_.load(std::memory_order_acquire) == 0; });
}

void Communicator::take_device() noexcept {
  set_current_device(device_);
}

bool Communicator::connect(std::uint32_t algorithms) {
  if ((own().algorithms.fetch_or(algorithms) & algorithms) == algorithms) return true;
  notify_ranks();
  const auto has_come = [algorithms](RankCell& cell) { return (cell.algorithms.load() & algorithms) == algorithms; };
  return wait_for_all(has_come) && take_proxy_pool() && allocate_connections();
}

bool Communicator::take_proxy_pool() {
  if (!uses_network_ || has_proxy_pool_) return true;
  has_proxy_pool_ = take_shared_memory(proxy_pool_bytes);
  if (!has_proxy_pool_) {
    fail(ncclSystemError, "Error while creating shared memory segment /dev/shm/nccl-emulated (size " +
                              std::to_string(proxy_pool_bytes) + "), error: No space left on device (28)");
  }
  return has_proxy_pool_;
}

// NCCL's own threads allocate in relaxed mode, but those of network plugins did not always (aws-ofi-nccl#1342).
bool Communicator::allocate_connections() {
  constexpr std::size_t bytes = 4096;
  void* memory = nullptr;
  std::thread([&] {
    take_device();
    if (refused_while_capturing() == cudaSuccess) memory = allocate_device_memory(bytes, device_);
  }).join();
  if (memory == nullptr) {
    fail(ncclUnhandledCudaError, "a thread that connects ranks could not allocate");
    return false;
  }
  connections_.push_back(memory);
  return true;
}

ncclResult_t Communicator::in_progress_for_a_while() noexcept {
  if (blocking_ || size_ == 1) return state();
  polls_left_.store(polls_in_progress(), std::memory_order_relaxed);
  return ncclInProgress;
}

ncclResult_t Communicator::polled() noexcept {
  const ncclResult_t now = state();
  if (now != ncclSuccess) return now;
  if (helpers_running_.load(std::memory_order_acquire) > 0) return ncclInProgress;
  if (polls_left_.load(std::memory_order_relaxed) > 0) {
    polls_left_.fetch_sub(1, std::memory_order_relaxed);
    return ncclInProgress;
  }
  return ncclSuccess;
}

void Communicator::wait_for_proxy() const noexcept {
  const auto is_full = [this] {
    const auto most = static_cast<std::uint64_t>(most_operations_in_flight());
    return uses_network_ && most > 0 && issued_.load() - served_.load() >= most;
  };
  while (is_full())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::uint64_t Communicator::issue() noexcept {
  references_.fetch_add(1, std::memory_order_relaxed);
  return issued_.fetch_add(1, std::memory_order_relaxed);
}

bool Communicator::start(std::uint64_t place) noexcept {
  running_.fetch_add(1);
  wait_until(counter_, [&] { return is_aborted() || finished_.load(std::memory_order_acquire) == place; });
  return !is_aborted();
}

void Communicator::finish(std::uint64_t place) noexcept {
  if (!is_aborted()) served_.fetch_add(1);
  finished_.store(place + 1, std::memory_order_release);
  running_.fetch_sub(1);
  notify(counter_);
  unreference();
}

void Communicator::hang() noexcept {
  wait_until(counter_, [this] { return is_aborted(); });
}

bool Communicator::is_on_broken_device() const noexcept {
  return is_broken(device_);
}

bool Communicator::reports_dead_rank() noexcept {
  if (!dead_ranks_are_reported()) return false;
  for (int rank = 0; rank < size_; ++rank) {
    if (cell(rank).joined.load() != 2 || !has_ended(cell(rank).process)) continue;
    fail(ncclRemoteError, "rank " + std::to_string(rank) + " has died");
    return true;
  }
  return false;
}

void Communicator::abort() {
  aborted_.store(true);
  notify(counter_);  // who waits for other ranks looks every 2 ms
  wait_until(counter_, [this] { return running_.load() == 0; });
}

void Communicator::release() {
  for (std::thread& helper : helpers_)
    helper.join();
  say_closing();
  wait_for_node();
  forget_registrations(*this);
  for (void* each : connections_)
    free_device_memory(each);
  if (has_proxy_pool_) give_back_shared_memory(proxy_pool_bytes);
  unreference();
}

void Communicator::say_closing() noexcept {
  if (!connected_.load()) return;
  own().closing.store(1);
  notify_ranks();
}

void Communicator::wait_for_node() noexcept {
  for (int rank = 0; connected_.load() && rank < size_; ++rank) {
    RankCell& other = cell(rank);
    for (;;) {
      const std::uint32_t seen = segment_->counter.load(std::memory_order_relaxed);
      if (other.host != own().host || other.closing.load() != 0 || has_ended(other.process)) break;
      park(segment_->counter, seen);
    }
  }
}

void Communicator::unreference() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Communicator::begin_finalize() {
  finalized_ = true;
  set_state(ncclInProgress);
  helpers_.emplace_back([this] { finalize(); });
  if (blocking_) block_while_in_progress();
}

void Communicator::finalize() {
  wait_until(counter_, [this] {
    return is_aborted() || finished_.load(std::memory_order_acquire) == issued_.load(std::memory_order_relaxed);
  });
  say_closing();
  if (!is_aborted()) set_state(ncclSuccess);
}

}  // namespace emulation
