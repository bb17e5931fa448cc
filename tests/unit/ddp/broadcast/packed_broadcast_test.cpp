#include "dtrain/ddp/broadcast/packed_broadcast.hpp"

#include "unit/ddp/prelude.hpp"

namespace packed_broadcast_test {

using dtrain::BufferView;

/// Tensors of these numbers of floats, in one memory.
struct Tensors {
  explicit Tensors(const std::vector<std::size_t>& counts)
      : memory(std::accumulate(counts.begin(), counts.end(), std::size_t{0})) {
    float* at = memory.data();
    for (const std::size_t count : counts) {
      views.push_back(dtrain::tensor_view(at, {static_cast<std::int64_t>(count)}));
      at += count;
    }
  }
  std::vector<float> memory;
  std::vector<dtrain::TensorView> views;
};

/// Number of broadcasts with which broadcast_values sends the tensors.
std::size_t broadcasts_of(const Tensors& tensors, bool packs) {
  support::Traffic traffic;
  support::CountingCommunicator communicator(traffic, 2);
  PackedBroadcast values(tensors.views, packs);
  const dtrain::ddp::FailureContext context{
      std::make_shared<dtrain::FailureLatch>(), 1, "vm", std::chrono::seconds(1), {}};
  dtrain::ddp::broadcast_values(communicator, {}, values, context);
  return traffic.broadcasts;
}

TEST_CASE("thousands of small tensors need a broadcast for each MiB, and large ones a broadcast each") {
  CHECK(broadcasts_of(Tensors(std::vector<std::size_t>(20000, 4)), true) == 1);
  CHECK(broadcasts_of(Tensors(std::vector<std::size_t>(20000, 4)), false) == 20000);
  CHECK(broadcasts_of(Tensors(std::vector<std::size_t>(1024, 1024)), true) == 4);
  CHECK(broadcasts_of(Tensors({5000, 1, 5000, 1, 0, 4097, 4096}), true) == 4);  // three alone, and one pack
  CHECK(broadcasts_of(Tensors({0, 0}), true) == 0);
  CHECK(broadcasts_of(Tensors({}), true) == 0);
}

TEST_CASE("every tensor of the other ranks gets rank 0's bytes, also where the copies run later, in order") {
  std::vector<std::size_t> counts(3000, 1000);
  for (std::size_t i = 0; i < counts.size(); i += 7)
    counts[i] = i % 5000;
  Tensors root(counts);
  Tensors other(counts);
  std::iota(root.memory.begin(), root.memory.end(), 1.0F);
  PackedBroadcast sends(root.views, true);
  PackedBroadcast receives(other.views, true);
  std::vector<std::function<void()>> of_root;
  std::vector<std::function<void()>> of_other;
  std::vector<BufferView> sent;
  std::size_t received = 0;
  std::vector<std::byte> wire;
  sends.launch(
      true, [&](const BufferView& view) { of_root.emplace_back([&sent, view] { sent.push_back(view); }); },
      [&](auto copy) { of_root.emplace_back(copy); });
  receives.launch(
      false,
      [&](const BufferView& view) {
        of_other.emplace_back([&, view] {
          while (sent.size() <= received) {  // rank 0's work up to this broadcast
            of_root.front()();
            of_root.erase(of_root.begin());
          }
          REQUIRE(sent[received].bytes() == view.bytes());
          std::memcpy(view.data, sent[received].data, view.bytes());
          ++received;
        });
      },
      [&](auto copy) { of_other.emplace_back(copy); });
  CHECK(other.memory != root.memory);
  for (const std::function<void()>& work : of_other)
    work();
  CHECK(other.memory == root.memory);
  CHECK(received == sent.size());
}

/// A rank whose broadcasts end after the time limit of the wait for them, because the job has failed.
class LateCommunicator : public support::CountingCommunicator {
 public:
  using Stream = dtrain::stream::host::StreamRef;
  LateCommunicator(support::Traffic& traffic, dtrain::FailureLatch& latch)
      : CountingCommunicator(traffic, 2), latch_(&latch) {}

  void enqueue(const dtrain::backend::AllReduce&, Stream) {}
  void enqueue(const dtrain::backend::Broadcast&, Stream stream) {
    stream.enqueue([latch = latch_]() noexcept {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      latch->report({dtrain::CauseKind::exception, 0, "vm", "rank 0 has ended"});
    });
  }
  void enqueue(const dtrain::backend::Barrier&, Stream) {}

 private:
  dtrain::FailureLatch* latch_;
};

TEST_CASE("a broadcast that fails leaves no copy in the stream, which would run after the end of the packs") {
  Tensors tensors(std::vector<std::size_t>(600, 1024));  // three packs
  support::Traffic traffic;
  dtrain::stream::host::Queue queue;
  const auto latch = std::make_shared<dtrain::FailureLatch>();
  {
    PackedBroadcast values(tensors.views, true);
    LateCommunicator communicator(traffic, *latch);
    const dtrain::ddp::FailureContext context{latch, 1, "vm", std::chrono::milliseconds(1), {}};
    CHECK_THROWS_AS(dtrain::ddp::broadcast_values(communicator, queue.ref(), values, context), dtrain::Error);
  }
  CHECK(queue.completed() == queue.published());
}

}  // namespace packed_broadcast_test
