// A backend of one's own in one file: its bytes go through the job's key-value store, which makes it slow, and at home
// on any number of hosts. A real one replaces Mailbox by its own way from rank to rank and keeps the rest.
//   write_a_backend --nproc-per-node=2

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mail {

/// One rank's end of a channel, shared by the communicator and the work that it has enqueued. All that can fail or wait
/// happens here.
class Mailbox {
 public:
  explicit Mailbox(dtrain::backend::ChannelContext context) : context_(std::move(context)) {}

  int rank() const noexcept { return context_.members.rank; }
  int size() const noexcept { return context_.members.world_size; }

  /// The first cause counts. From any thread, while an operation runs.
  void abort(const dtrain::Cause& cause) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = cause;
  }
  std::optional<dtrain::Cause> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  /// Runs one operation unless the channel has failed. What it throws ends the channel, and the job is told.
  template <class Operation>
  void run(Operation operation) noexcept {
    if (failure()) return;
    ++number_;
    deadline_ = dtrain::Deadline::after(context_.timeout);
    try {
      operation(*this);
    } catch (const dtrain::JobFailed& failed) {
      abort(failed.cause());  // the job knows
    } catch (const std::exception& error) {
      const auto kind = deadline_.passed() ? dtrain::CauseKind::timeout : dtrain::CauseKind::exception;
      const dtrain::Cause cause{kind, context_.reporting_rank(), context_.members.host, error.what()};
      abort(cause);
      context_.failure->report(cause);
    }
  }

  /// Every rank's bytes, rank 0's first. All ranks give as many.
  std::vector<std::string> gather(std::string_view own) {
    publish(own);
    std::vector<std::string> all;
    for (int rank = 0; rank < size(); ++rank) {
      all.push_back(read(rank, own.size()));
    }
    // Who has published this operation has read all of those before it: their values are not needed any more.
    for (const std::string& key : old_keys_) {
      context_.store.set_blocking(key, "", deadline_);
    }
    old_keys_ = std::exchange(keys_, {});
    return all;
  }

  /// Rank `root`'s bytes.
  std::string from(int root, std::string_view own) {
    if (rank() == root) publish(own);
    return read(root, own.size());
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{256} << 10;  // a value of the store has its bounds

  std::string key(int rank, std::size_t offset) const {
    return context_.name + "/" + std::to_string(number_) + "/" + std::to_string(rank) + "/" + std::to_string(offset);
  }

  void publish(std::string_view bytes) {
    std::size_t offset = 0;
    do {
      keys_.push_back(key(rank(), offset));
      context_.store.set_blocking(keys_.back(), std::string(bytes.substr(offset, piece_bytes)), deadline_);
      offset += piece_bytes;
    } while (offset < bytes.size());
  }

  std::string read(int rank, std::size_t count) {
    std::string bytes;
    do {
      const std::string piece = wait_for(key(rank, bytes.size()));
      if (piece.size() != std::min(count - bytes.size(), piece_bytes)) {
        throw dtrain::Error(dtrain::Errc::disagreement,
                            "rank " + std::to_string(rank) +
                                " is in an operation with another number of bytes than rank " +
                                std::to_string(this->rank()));
      }
      bytes += piece;
    } while (bytes.size() < count);
    return bytes;
  }

  /// In short turns: an abort of this channel ends the wait within one, and meanwhile this rank's other streams, for
  /// which a peer may wait, are run.
  std::string wait_for(const std::string& key) {
    for (;;) {
      try {
        const auto turn = dtrain::Deadline::after(std::chrono::milliseconds(20));
        return context_.store.get_blocking(key, earlier(turn, deadline_));
      } catch (const dtrain::Error& error) {
        if (error.code() != dtrain::Errc::timeout || deadline_.passed()) throw;
      }
      if (const std::optional<dtrain::Cause> cause = failure()) dtrain::throw_cause(*cause);
      if (context_.on_stall) context_.on_stall();
    }
  }

  dtrain::backend::ChannelContext context_;
  std::size_t number_ = 0;  ///< of the operation
  dtrain::Deadline deadline_ = dtrain::Deadline::after(std::chrono::seconds(0));
  std::vector<std::string> keys_;      ///< published since the last gather
  std::vector<std::string> old_keys_;  ///< until it
  mutable std::mutex mutex_;           ///< of what follows
  std::optional<dtrain::Cause> failure_;
};

/// What dtrain::backend::Communicator asks for; see there for the contract of each.
class Communicator {
 public:
  using Stream = dtrain::stream::host::StreamRef;

  /// Any memory will do: this backend copies all of it.
  class Allocation {
   public:
    explicit Allocation(std::size_t bytes) : memory_(std::make_unique<std::byte[]>(bytes)), bytes_(bytes) {}
    std::byte* data() const noexcept { return memory_.get(); }
    std::size_t bytes() const noexcept { return bytes_; }

   private:
    std::unique_ptr<std::byte[]> memory_;
    std::size_t bytes_;
  };

  explicit Communicator(const dtrain::backend::ChannelContext& context)
      : mailbox_(std::make_shared<Mailbox>(context)),
        job_(context.failure->subscribe(
            [mailbox = mailbox_.get()](const dtrain::Cause& cause) { mailbox->abort(cause); })) {}
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&&) noexcept = default;
  ~Communicator() {
    job_.reset();
    if (mailbox_)
      abort({dtrain::CauseKind::stopped, rank(), "", "the channel was closed"});  // what has not run is skipped
  }

  int rank() const noexcept { return mailbox_->rank(); }
  int size() const noexcept { return mailbox_->size(); }

  void all_reduce(dtrain::ConstBufferView input, dtrain::BufferView output, dtrain::ReduceOp op, Stream stream) {
    enqueue(stream, [input, output, op](Mailbox& mailbox) {
      const std::vector<std::string> all = mailbox.gather(text_of(input));
      std::vector<const std::byte*> sources;
      for (const std::string& bytes : all) {
        sources.push_back(reinterpret_cast<const std::byte*>(bytes.data()));
      }
      std::byte* const target = output.data;
      dtrain::kernels::Reduction::of(input.dtype, op)(sources, std::span(&target, 1), input.count);
    });
  }

  void broadcast(dtrain::BufferView buffer, int root, Stream stream) {
    enqueue(stream, [buffer, root](Mailbox& mailbox) {
      const std::string bytes = mailbox.from(root, text_of(buffer));
      if (!bytes.empty()) std::memcpy(buffer.data, bytes.data(), bytes.size());
    });
  }

  void barrier(Stream stream) {
    enqueue(stream, [](Mailbox& mailbox) { mailbox.gather({}); });
  }

  Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline) {
    if (const std::optional<dtrain::Cause> cause = failure()) dtrain::throw_cause(*cause);
    return Allocation(bytes);
  }

  void abort(const dtrain::Cause& cause) noexcept { mailbox_->abort(cause); }
  std::optional<dtrain::Cause> failure() const { return mailbox_->failure(); }

 private:
  /// What a host stream takes: small, and with nothing to destroy, hence a pointer that it frees itself. drop() is
  /// called instead where the stream ends before the work has run.
  template <class Operation>
  struct Work {
    struct Held {
      std::shared_ptr<Mailbox> mailbox;
      Operation operation;
    };
    Held* held;

    void operator()() noexcept {
      held->mailbox->run(held->operation);
      drop();
    }
    void drop() noexcept { delete held; }
  };

  template <class Operation>
  void enqueue(Stream stream, Operation operation) {
    using Held = typename Work<Operation>::Held;
    auto held = std::make_unique<Held>(Held{mailbox_, operation});
    stream.enqueue(Work<Operation>{held.get()});
    static_cast<void>(held.release());
  }

  static std::string_view text_of(const dtrain::ConstBufferView& view) {
    return {reinterpret_cast<const char*>(view.data), view.bytes()};
  }

  std::shared_ptr<Mailbox> mailbox_;
  dtrain::FailureLatch::Subscription job_;  ///< ends before what it calls
};

/// What a Policy names.
struct Backend {
  using Communicator = mail::Communicator;
  using StreamOwner = dtrain::stream::host::CommunicationStream;

  static constexpr auto determinism = dtrain::backend::Determinism::always;  // reduced in rank order
  static constexpr std::string_view name() noexcept { return "Mail"; }
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::host; }
  static constexpr bool reduces(dtrain::DType dtype) noexcept { return !is_float8(dtype); }

  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, dtrain::Deadline) {
    context.failure->throw_if_failed(context.reporting_rank());
    return Communicator(context);
  }
};

// Where something is missing, the compiler names it.
static_assert(dtrain::backend::Communicator<Communicator>);
static_assert(dtrain::backend::Backend<Backend>);

}  // namespace mail

using Policy = dtrain::Policy<dtrain::launch::PerNode, mail::Backend, dtrain::topology::Flat>;

/// One number that is to become 3.
struct Model {
  float value = 0;
  float gradient = 0;

  std::vector<dtrain::Parameter> parameters() {
    return {{"value", dtrain::tensor_view(&value, {1}), dtrain::tensor_view(&gradient, {1})}};
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    std::vector<double> ranks(100000, group.rank());  // more than one piece of the store's
    group.all_reduce(ranks, dtrain::ReduceOp::sum);

    Model model;
    dtrain::DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 40; ++step) {
      ddp.backward([&](dtrain::Ready ready) {
        // Ranks see other targets, whose mean is 3.
        const float target = 3 + static_cast<float>(group.rank()) - static_cast<float>(group.world_size() - 1) / 2;
        model.gradient = model.value - target;
        ready(0);
      });
      model.value -= 0.5F * model.gradient;
    }
    std::printf("rank %d of %d: sum %.0f, value %.4f\n", group.rank(), group.world_size(), ranks.back(), model.value);
    return 0;
  });
}
