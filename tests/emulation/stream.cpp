/// @file
/// The thread of a stream, and its queue.

#include "stream.hpp"

#include <pthread.h>

#include <csignal>

#include "api.hpp"
#include "capture.hpp"
#include "emulation.hpp"
#include "event.hpp"
#include "futex.hpp"

namespace emulation {

/// What the streams of a hardware queue were given runs in the order in which it was given, one after the other.
struct HardwareQueue {
  int streams = 0;     ///< that have it now
  std::mutex issuing;  ///< a stream's own order is the queue's
  std::uint64_t issued = 0;
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint32_t> counter{0};
};

namespace {

std::atomic<bool> has_hardware_queues{false};

struct HardwareQueues {
  std::mutex mutex;
  std::array<std::vector<HardwareQueue*>, most_devices> queues;  ///< since a test asked for them
  std::vector<std::unique_ptr<HardwareQueue>> made;              ///< streams hold them as long as they run
};
HardwareQueues& hardware_queues() {
  static HardwareQueues* const only = new HardwareQueues;
  return *only;
}

/// Of the device's queues the first that the fewest streams have; there are as many as CUDA_DEVICE_MAX_CONNECTIONS
/// says, 8 where it says nothing.
HardwareQueue* take_hardware_queue(int device) {
  if (!has_hardware_queues.load(std::memory_order_relaxed)) return nullptr;
  const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const auto count = static_cast<std::size_t>(text == nullptr ? 8 : std::clamp(std::atoi(text), 1, 32));
  HardwareQueues& all = hardware_queues();
  const std::lock_guard lock(all.mutex);
  std::vector<HardwareQueue*>& queues = all.queues[static_cast<std::size_t>(device)];
  while (queues.size() < count)
    queues.push_back(all.made.emplace_back(std::make_unique<HardwareQueue>()).get());
  HardwareQueue* const queue = *std::min_element(
      queues.begin(), queues.end(), [](const auto* one, const auto* other) { return one->streams < other->streams; });
  ++queue->streams;
  return queue;
}

void return_hardware_queue(HardwareQueue* queue) {
  if (queue == nullptr) return;
  const std::lock_guard lock(hardware_queues().mutex);
  --queue->streams;
}

thread_local bool is_stream_thread = false;

// Only who makes, ends or waits for all streams takes this mutex.
struct Registry {
  std::mutex mutex;
  std::vector<Stream*> streams;
  std::vector<std::pair<int, Record*>> ended;  ///< of each device, the last record of a stream that may still run
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}

std::array<std::atomic<Stream*>, most_devices> default_streams{};

struct DriverLock {
  std::atomic<int> holders{0};
  std::atomic<std::uint32_t> counter{0};
};
std::array<DriverLock, most_devices> driver_locks{};

Stream& default_stream(int device) {
  std::atomic<Stream*>& place = default_streams[static_cast<std::size_t>(device)];
  if (Stream* const there = place.load(std::memory_order_acquire)) return *there;
  auto* const made = new Stream(device);
  Stream* there = nullptr;
  if (place.compare_exchange_strong(there, made)) return *made;
  made->end();
  return *there;
}

/// Threads of libraries leave signals to the program's own.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

void set_hardware_queues(bool shared) {
  HardwareQueues& all = hardware_queues();
  const std::lock_guard lock(all.mutex);
  for (auto& each : all.queues)
    each.clear();
  has_hardware_queues.store(shared, std::memory_order_relaxed);
}

bool in_stream_thread() noexcept {
  return is_stream_thread;
}

Stream::Stream(int device)
    : device_(device), queue_(take_hardware_queue(device)), newest_(new Item), oldest_(newest_.load()) {
  make_context(device);
  const SignalsBlocked blocked;
  std::thread([this] { run(); }).detach();
  const std::lock_guard lock(registry().mutex);
  registry().streams.push_back(this);
}

Stream::~Stream() {
  delete oldest_;
}

void Stream::push(Item* item) noexcept {
  Item* const before = newest_.exchange(item, std::memory_order_acq_rel);
  before->next.store(item, std::memory_order_release);
  notify(counter_);
}

void Stream::enqueue(Work work) {
  const auto is_full = [this] {
    const std::uint64_t done = completed_.load(std::memory_order_relaxed);  // before those issued, which are no fewer
    return issued_.load(std::memory_order_relaxed) - done >= most_held;
  };
  if (is_full()) {
    DriverLock& driver = driver_locks[static_cast<std::size_t>(device_)];
    driver.holders.fetch_add(1, std::memory_order_relaxed);
    wait_until(completion_counter_, [&] { return !is_full(); });
    driver.holders.fetch_sub(1, std::memory_order_relaxed);
    notify(driver.counter);
  }
  enqueue_beyond(std::move(work));
}

void Stream::enqueue_beyond(Work work) {
  issued_.fetch_add(1, std::memory_order_relaxed);
  auto* const item = new Item;
  if (queue_ == nullptr) {
    item->work = std::move(work);
    return push(item);
  }
  const std::lock_guard lock(queue_->issuing);
  item->work = [queue = queue_, place = queue_->issued++, work = std::move(work)]() mutable {
    wait_until(queue->counter, [&] { return queue->done.load(std::memory_order_acquire) == place; });
    work();
    work = nullptr;
    queue->done.store(place + 1, std::memory_order_release);
    notify(queue->counter);
  };
  push(item);
}

void Stream::submit(MakeWork make) {
  if (Capture* const graph = capture()) {
    graph->add(lane_, std::move(make));
  } else {
    enqueue(make());
  }
}

Stream::Item* Stream::next_blocking() noexcept {
  Item* next = nullptr;
  wait_until(counter_, [&] { return (next = oldest_->next.load(std::memory_order_acquire)) != nullptr; });
  delete oldest_;
  oldest_ = next;
  return next;
}

void Stream::run() noexcept {
  is_stream_thread = true;
  const RuntimeScope scope;
  for (;;) {
    Item* const item = next_blocking();
    if (!item->work) break;
    item->work();
    item->work = nullptr;  // what it holds goes before it counts as done
    completed_.fetch_add(1, std::memory_order_release);
    is_marked_.store(false, std::memory_order_release);
    notify(completion_counter_);
  }
  while (!is_let_go_.load(std::memory_order_acquire))
    std::this_thread::yield();
  delete this;
}

void Stream::enqueue_mark(Record* mark) {
  enqueue_beyond([this, mark] {
    is_marked_.store(true, std::memory_order_relaxed);
    mark->complete();
  });
}

bool Stream::has_nothing_to_do() const noexcept {
  const bool is_at_mark = is_marked_.load(std::memory_order_acquire);
  return is_complete() ||
         (is_at_mark && issued_.load(std::memory_order_relaxed) - completed_.load(std::memory_order_acquire) == 1);
}

bool Stream::is_complete() const noexcept {
  return completed_.load(std::memory_order_acquire) >= issued_.load(std::memory_order_relaxed);
}

void Stream::block_until_complete() const noexcept {
  const std::uint64_t wanted = issued_.load(std::memory_order_relaxed);
  wait_until(completion_counter_, [&] { return completed_.load(std::memory_order_acquire) >= wanted; });
}

void Stream::end() {
  return_hardware_queue(queue_);
  {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().streams, this);
    std::erase_if(registry().ended, [](const auto& each) { return each.second->is_done(); });
    if (!is_complete()) {
      Record* const last = new_record();
      enqueue_beyond([last] { last->complete(); });
      registry().ended.emplace_back(device_, last);
    }
  }
  push(new Item);
  is_let_go_.store(true, std::memory_order_release);
}

void Stream::set_capture(Capture* capture, int lane) noexcept {
  lane_ = lane;
  capture_.store(capture, std::memory_order_relaxed);
}

bool is_default_stream(cudaStream_t handle) noexcept {
  return handle == nullptr || handle == cudaStreamLegacy;
}

Stream* stream_of(cudaStream_t handle) noexcept {
  if (handle == cudaStreamPerThread) return nullptr;
  return is_default_stream(handle) ? &default_stream(current_device()) : reinterpret_cast<Stream*>(handle);
}

int handle_device(cudaStream_t handle) noexcept {
  const bool has_own = !is_default_stream(handle) && handle != cudaStreamPerThread;
  return has_own ? stream_of(handle)->device() : current_device();
}

void block_until_default_stream_complete(int device) noexcept {
  const Stream* const stream = default_streams[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  if (stream != nullptr) stream->block_until_complete();
}

cudaStream_t handle_of(Stream* stream) noexcept {
  return reinterpret_cast<cudaStream_t>(stream);
}

void block_until_device_complete(int device) noexcept {
  std::vector<Record*> marks;
  {
    const std::lock_guard lock(registry().mutex);  // nobody ends a stream meanwhile
    for (Stream* stream : registry().streams) {
      if (stream->device() != device || stream->is_complete()) continue;
      marks.push_back(new_record());
      stream->enqueue_mark(marks.back());
    }
    for (const auto& [where, last] : registry().ended) {
      if (where == device) marks.push_back(last);
    }
  }
  for (const Record* mark : marks)
    mark->block();
}

bool is_device_complete(int device) noexcept {
  const std::lock_guard lock(registry().mutex);
  return std::all_of(registry().streams.begin(), registry().streams.end(),
                     [&](const Stream* each) { return each->device() != device || each->has_nothing_to_do(); });
}

void block_while_driver_is_held(int device) noexcept {
  const DriverLock& driver = driver_locks[static_cast<std::size_t>(device)];
  wait_until(driver.counter, [&] { return driver.holders.load(std::memory_order_relaxed) == 0; });
}

void launch(cudaStream_t stream, std::function<void()> work) {
  stream_of(stream)->submit([work = std::move(work)] { return work; });
}

}  // namespace emulation
