#pragma once
/// @file
/// A backend whose bytes go through the job's store: slow, and at home on any number of hosts, so that programs with
/// ranks on several virtual nodes can be tested.

#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "support/reference_reduction.hpp"

namespace support {

/// One rank's end of a channel. Each operation has a number, which is in its keys. Every rank sets its share and reads
/// those of the others, piece by piece; once it has read a share of all of them, all are done with what came before,
/// which is then blanked.
class StoreChannel {
 public:
  explicit StoreChannel(dtrain::backend::ChannelContext context) : context_(std::move(context)) {}

  int rank() const noexcept { return context_.members.rank; }
  int size() const noexcept { return context_.members.world_size; }

  void abort(const dtrain::Cause& cause) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = cause;
  }
  std::optional<dtrain::Cause> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  /// Runs one operation; skipped after a failure, which it becomes where it throws.
  template <class Work>
  void run(Work work) noexcept {
    if (failure()) return;
    try {
      ++number_;
      deadline_ = dtrain::Deadline::after(context_.timeout);
      work();
    } catch (const dtrain::JobFailed& failed) {
      abort(failed.cause());
    } catch (const std::exception& error) {
      const bool late = deadline_.passed();
      const dtrain::Cause cause{late ? dtrain::CauseKind::timeout : dtrain::CauseKind::exception, rank(),
                                context_.members.host, error.what()};
      abort(cause);
      context_.failure->report(cause);
    }
  }

  /// All ranks' bytes, those of one rank after those of the other.
  /// @param what the same on all ranks, or the job fails
  std::vector<std::string> gather(const std::string& what, std::string_view bytes) {
    publish(what, bytes);
    std::vector<std::string> all;
    for (int other = 0; other < size(); ++other)
      all.push_back(read(what, other, bytes.size()));
    forget();
    return all;
  }

  /// Rank `root`'s bytes.
  std::string from(int root, const std::string& what, std::string_view bytes) {
    if (rank() == root) {
      publish(what, bytes);
    }
    return read(what, root, bytes.size());
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{256} << 10;

  /// What the keys of the present operation begin with: several channels may share a store.
  std::string operation() const { return context_.name + "/" + std::to_string(number_) + "/"; }

  std::string key(int of, std::size_t offset) const {
    return operation() + std::to_string(of) + "/" + std::to_string(offset);
  }

  void publish(const std::string& what, std::string_view bytes) {
    std::size_t offset = 0;
    do {
      const std::string_view piece = bytes.substr(offset, piece_bytes);
      context_.store.set_blocking(key(rank(), offset), what + "\n" + std::string(piece), deadline_);
      published_.push_back(key(rank(), offset));
      offset += piece_bytes;
    } while (offset < bytes.size());
  }

  std::string read(const std::string& what, int of, std::size_t count) {
    std::string bytes;
    do {
      const std::string value = patiently(key(of, bytes.size()));
      const std::size_t end = value.find('\n');
      if (value.substr(0, end) != what) {
        const dtrain::Cause cause{dtrain::CauseKind::disagreement, of, "",
                                  "rank " + std::to_string(rank()) + " is in " + what + ", rank " + std::to_string(of) +
                                      " in " + value.substr(0, end)};
        context_.failure->report(cause);
        dtrain::throw_cause(cause);
      }
      bytes += value.substr(end + 1);
    } while (bytes.size() < count);
    return bytes;
  }

  /// In short turns, because the store does not know of an abort of this channel alone.
  std::string patiently(const std::string& wanted) {
    for (;;) {
      const dtrain::Deadline turn = dtrain::Deadline::after(std::chrono::milliseconds(20));
      try {
        return context_.store.get_blocking(wanted, earlier(turn, deadline_));
      } catch (const dtrain::Error& error) {
        if (error.code() != dtrain::make_error_code(dtrain::Errc::timeout) || deadline_.passed()) throw;
      }
      if (const std::optional<dtrain::Cause> cause = failure()) dtrain::throw_cause(*cause);
      if (context_.on_stall) context_.on_stall();
    }
  }

  /// What was published before this operation has been read by all.
  void forget() {
    const std::string own = operation();
    std::vector<std::string> kept;
    for (std::string& each : published_) {
      if (each.starts_with(own)) {
        kept.push_back(std::move(each));
      } else {
        context_.store.set_blocking(each, "", deadline_);
      }
    }
    published_ = std::move(kept);
  }

  dtrain::backend::ChannelContext context_;
  std::size_t number_ = 0;
  dtrain::Deadline deadline_ = dtrain::Deadline::after(std::chrono::seconds(0));
  std::vector<std::string> published_;
  mutable std::mutex mutex_;
  std::optional<dtrain::Cause> failure_;
};

class StoreCommunicator {
 public:
  using Stream = dtrain::stream::host::StreamRef;

  class Allocation {
   public:
    explicit Allocation(std::size_t bytes) : memory_(new (std::align_val_t{64}) std::byte[bytes]{}), bytes_(bytes) {}
    std::byte* data() const noexcept { return memory_.get(); }
    std::size_t bytes() const noexcept { return bytes_; }

   private:
    struct Free {
      void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t bytes_;
  };

  explicit StoreCommunicator(const dtrain::backend::ChannelContext& context)
      : channel_(std::make_shared<StoreChannel>(context)),
        subscription_(context.failure->subscribe(
            [channel = channel_.get()](const dtrain::Cause& cause) { channel->abort(cause); })) {}
  StoreCommunicator(StoreCommunicator&&) noexcept = default;
  StoreCommunicator& operator=(StoreCommunicator&&) noexcept = default;
  ~StoreCommunicator() {
    subscription_.reset();
    if (channel_) {  // work that has not run is skipped
      channel_->abort({dtrain::CauseKind::stopped, channel_->rank(), "", "the channel was closed"});
    }
  }

  int rank() const noexcept { return channel_->rank(); }
  int size() const noexcept { return channel_->size(); }

  void enqueue(const dtrain::backend::AllReduce& call, Stream stream) {
    call.check({rank(), size()});
    if (call.input.dtype == dtrain::DType::f32) {
      enqueue_work(stream, [call](StoreChannel& channel) { reduce<float>(channel, call.input, call.output, call.op); });
    } else if (call.input.dtype == dtrain::DType::f64) {
      enqueue_work(stream,
                   [call](StoreChannel& channel) { reduce<double>(channel, call.input, call.output, call.op); });
    } else {
      throw dtrain::Error(dtrain::Errc::unsupported, "the store backend reduces f32 and f64");
    }
  }

  void enqueue(const dtrain::backend::Broadcast& call, Stream stream) {
    call.check({rank(), size()});
    enqueue_work(stream, [buffer = call.buffer, root = call.root](StoreChannel& channel) {
      const std::string bytes = channel.from(root, label("broadcast", buffer, root), bytes_of(buffer));
      copy(bytes, buffer);
    });
  }

  void enqueue(const dtrain::backend::Barrier&, Stream stream) {
    enqueue_work(stream, [](StoreChannel& channel) { channel.gather("barrier", {}); });
  }

  Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline) {
    if (const std::optional<dtrain::Cause> cause = failure()) dtrain::throw_cause(*cause);
    return Allocation(bytes);
  }

  void abort(const dtrain::Cause& cause) noexcept { channel_->abort(cause); }
  std::optional<dtrain::Cause> failure() const { return channel_->failure(); }

 private:
  /// Work on a queue has nothing to destroy: what it holds lies behind a pointer that it frees.
  template <class Work>
  struct Enqueued {
    struct Held {
      std::shared_ptr<StoreChannel> channel;
      Work work;
    };
    Held* held;

    void operator()() noexcept {
      held->channel->run([this] { held->work(*held->channel); });
      drop();
    }
    void drop() noexcept { delete held; }
  };

  template <class Work>
  void enqueue_work(Stream stream, Work work) {
    auto held = std::make_unique<typename Enqueued<Work>::Held>(typename Enqueued<Work>::Held{channel_, work});
    stream.enqueue(Enqueued<Work>{held.get()});
    static_cast<void>(held.release());
  }

  static std::string_view bytes_of(const dtrain::ConstBufferView& view) {
    return {reinterpret_cast<const char*>(view.data), view.bytes()};
  }

  static std::string label(const char* operation, const dtrain::ConstBufferView& view, int detail) {
    return std::string(operation) + " of " + std::to_string(view.count) + " " + name(view.dtype) + " (" +
           std::to_string(detail) + ")";
  }

  static void copy(const std::string& bytes, const dtrain::BufferView& to) {
    if (!bytes.empty()) {
      std::memcpy(to.data, bytes.data(), bytes.size());
    }
  }

  template <class T>
  static void reduce(StoreChannel& channel, const dtrain::ConstBufferView& input, const dtrain::BufferView& output,
                     dtrain::ReduceOp op) {
    const std::vector<std::string> shares =
        channel.gather(label("all_reduce", input, static_cast<int>(op)), bytes_of(input));
    std::vector<std::vector<T>> inputs;
    for (const std::string& share : shares) {
      std::vector<T>& values = inputs.emplace_back(input.count);
      if (!share.empty()) {
        std::memcpy(values.data(), share.data(), share.size());
      }
    }
    const std::vector<T> result = reference_reduction(op, inputs);
    if (!result.empty()) {
      std::memcpy(output.data, result.data(), output.bytes());
    }
  }

  std::shared_ptr<StoreChannel> channel_;
  dtrain::FailureLatch::Subscription subscription_;  ///< gone before what it uses
};

static_assert(dtrain::backend::Communicator<StoreCommunicator>);

struct StoreBackend {
  using Communicator = StoreCommunicator;
  using StreamOwner = dtrain::stream::host::CommunicationStream;

  static constexpr std::string_view name() noexcept { return "Store"; }
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::host; }
  static constexpr bool reduces(dtrain::DType dtype) noexcept {
    return dtype == dtrain::DType::f32 || dtype == dtrain::DType::f64;
  }
  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, dtrain::Deadline) {
    context.failure->throw_if_failed(context.members.rank);
    return Communicator(context);
  }
};

static_assert(dtrain::backend::Backend<StoreBackend>);

}  // namespace support
