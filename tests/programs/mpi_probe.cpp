// One rank of a job over MPI that does what its first argument says, with MPI's own collectives where that begins with
// "own_"; tests/integration/mpi_test.cpp starts it.
#include "programs/prelude.hpp"
#if DTRAIN_WITH_MPI

#include <signal.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "support/element_bytes.hpp"
#include "support/large_values.hpp"
#include "support/scalar_reduction.hpp"

namespace {

using Bytes = std::vector<std::byte>;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("wrong: ") + what);
}

template <class Group>
int hello(const Group& group) {
  double sum = group.rank();
  group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
  std::printf("rank %d of %d: sum %.0f\n", group.rank(), group.world_size(), sum);
  return 0;
}

/// Collectives with blocks: rank s gives `scale` times (2 s + 3 r) modulo 4 elements to rank r, each 100 s + r.
template <class Group>
void exchange_blocks(const Group& group, std::size_t scale) {
  using Counts = std::vector<std::size_t>;
  using Values = std::vector<std::int32_t>;
  const int size = group.world_size();
  const int self = group.rank();
  const int root = size - 1;
  const auto count_of = [&](int from, int to) { return scale * (static_cast<std::size_t>(2 * from + 3 * to) % 4); };
  Counts sent;
  Counts received;
  Counts to_root;
  Values input;
  Values expected;
  Values at_root;
  for (int peer = 0; peer < size; ++peer) {
    sent.push_back(count_of(self, peer));
    received.push_back(count_of(peer, self));
    to_root.push_back(count_of(peer, root));
    input.insert(input.end(), sent.back(), 100 * self + peer);
    expected.insert(expected.end(), received.back(), 100 * peer + self);
    at_root.insert(at_root.end(), to_root.back(), 100 * peer + root);
  }
  const std::size_t given = count_of(self, root);
  const Values own(given, 100 * self + root);
  Values output(expected.size());
  group.all_to_all_v(input, sent, output, received);
  require(output == expected, "all_to_all_v");
  Values all(at_root.size());
  group.all_gather_v(own, all, to_root);
  require(all == at_root, "all_gather_v");
  Values gathered(self == root ? at_root.size() : 0);
  group.gather_v(own, gathered, to_root, root);
  require(gathered == (self == root ? at_root : Values()), "gather_v");
  Values back(given);
  group.scatter_v(gathered, to_root, back, root);
  require(back == own, "scatter_v");
  Values sum(given);
  group.reduce_scatter_v(all, sum, to_root);
  require(sum == Values(given, size * (100 * self + root)), "reduce_scatter_v");
  Values ranks(scale, self);
  group.reduce(ranks, root);
  require(ranks == Values(scale, self == root ? size * (size - 1) / 2 : self), "reduce");
  Values table(self == root ? scale * static_cast<std::size_t>(size) : 0);
  group.gather(ranks, table, root);
  ranks.assign(scale, 0);
  group.scatter(table, ranks, root);
  require(ranks == Values(scale, self == root ? size * (size - 1) / 2 : self), "gather and scatter");
  Values turned(scale * static_cast<std::size_t>(size), self);
  Values from_all(turned.size());
  group.all_to_all(turned, from_all);
  for (std::size_t i = 0; i < from_all.size(); ++i)
    require(from_all[i] == static_cast<int>(i / scale), "all_to_all");
  std::vector<std::uint64_t> words(scale * 3, static_cast<std::uint64_t>(self));
  std::uint64_t folded = 0;
  for (int rank = 1; rank < size; ++rank)
    folded = folded * 31 + static_cast<std::uint64_t>(rank);
  group.all_reduce(words, [](std::uint64_t earlier, std::uint64_t later) { return earlier * 31 + later; });
  require(words == std::vector<std::uint64_t>(scale * 3, folded), "all_reduce by a function");
}

/// Every collective with every type, small and large, against a plain loop.
template <class Group>
int collectives(const Group& group) {
  const int size = group.world_size();
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto stream = group.stream();
  auto channel = dtrain::group::GroupAccess::of(group).open_channel("probe");
  const auto wait = [&] {
    typename Group::Stream::Event event;
    stream.record(event);
    dtrain::backend::block_until_complete(event, channel, *dtrain::group::GroupAccess::of(group).failure(),
                                          group.timeout(), group.rank());
  };
  for (const dtrain::DType dtype : support::all_dtypes) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{5000}, std::size_t{1'000'003}}) {
      std::vector<Bytes> given;
      for (int peer = 0; peer < size; ++peer)
        given.push_back(support::awkward_bytes(dtype, count, static_cast<std::uint64_t>(peer) + count));
      const Bytes expected = support::scalar_reduction(dtype, dtrain::ReduceOp::max, given);
      Bytes memory = given[rank];
      const dtrain::BufferView view{memory.data(), count, dtype, {}};
      channel.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::max}, stream);
      wait();
      require(memory == expected, "all_reduce");
      const int root = size - 1;
      memory = given[rank];
      channel.enqueue(dtrain::backend::Broadcast{view, root}, stream);
      wait();
      require(memory == given[static_cast<std::size_t>(root)], "broadcast");
      const int next = (group.rank() + 1) % size;
      const int previous = (group.rank() + size - 1) % size;
      Bytes output(given[rank].size());
      const dtrain::ConstBufferView input(given[rank].data(), count, dtype);
      channel.enqueue(dtrain::backend::SendRecv{input, next, {output.data(), count, dtype, {}}, previous}, stream);
      wait();
      require(output == given[static_cast<std::size_t>(previous)], "send_recv");
      Bytes all(output.size() * static_cast<std::size_t>(size));
      const dtrain::BufferView gathered{all.data(), count * static_cast<std::size_t>(size), dtype, {}};
      channel.enqueue(dtrain::backend::AllGather{input, gathered}, stream);
      channel.enqueue(
          dtrain::backend::ReduceScatter{gathered, {output.data(), count, dtype, {}}, dtrain::ReduceOp::min}, stream);
      wait();
      const std::vector<Bytes> same(static_cast<std::size_t>(size), given[rank]);
      require(output == support::scalar_reduction(dtype, dtrain::ReduceOp::min, same), "all_gather and reduce_scatter");
      const dtrain::BufferView block{all.data() + rank * output.size(), count, dtype, {}};
      channel.enqueue(dtrain::backend::AllGather{block, gathered}, stream);
      channel.enqueue(dtrain::backend::ReduceScatter{gathered, block, dtrain::ReduceOp::max}, stream);
      wait();
      require(Bytes(block.data, block.data + block.bytes()) ==
                  support::scalar_reduction(dtype, dtrain::ReduceOp::max, same),
              "all_gather and reduce_scatter in place");
      channel.enqueue(dtrain::backend::Barrier{}, stream);
      wait();
    }
  }
  for (const std::size_t scale : {std::size_t{0}, std::size_t{7}, std::size_t{1000}, std::size_t{300'001}})
    exchange_blocks(group, scale);
  const Group half = group.split(group.rank() % 2, -group.rank());
  int sum = group.rank();
  half.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
  int expected = 0;
  for (int peer = group.rank() % 2; peer < size; peer += 2)
    expected += peer;
  require(sum == expected, "a split group's all_reduce");
  std::puts("all right");
  return 0;
}

/// Two channels, each rank in another order: they never wait for each other.
template <class Group>
int crossed(const Group& group) {
  auto first = dtrain::group::GroupAccess::of(group).open_channel("first");
  auto second = dtrain::group::GroupAccess::of(group).open_channel("second");
  auto first_stream = group.open_stream();
  auto second_stream = group.open_stream();
  std::vector<float> a(3'000'000, 1);
  std::vector<float> b(3'000'000, 2);
  const auto start = [](auto& channel, auto& stream, std::vector<float>& values) {
    const dtrain::BufferView view = dtrain::buffer_view(std::span(values));
    channel.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, stream.ref());
  };
  const auto finish = [&](auto& channel, auto& stream) {
    typename Group::Stream::Event event;
    stream.ref().record(event);
    dtrain::backend::block_until_complete(event, channel, *dtrain::group::GroupAccess::of(group).failure(),
                                          group.timeout(), group.rank());
  };
  start(first, first_stream, a);
  start(second, second_stream, b);
  if (group.rank() % 2 == 0) {
    finish(first, first_stream);
    finish(second, second_stream);
  } else {
    finish(second, second_stream);
    finish(first, first_stream);
  }
  const auto ranks = static_cast<float>(group.world_size());
  require(a.back() == ranks && b.front() == 2 * ranks, "crossed channels");
  std::puts("all right");
  return 0;
}

/// Reduces without end; rank 1 ends in the middle of it as told.
template <class Group>
int endless(const Group& group, std::string_view how) {
  std::vector<float> values(2'000'000, 1);
  for (int step = 0;; ++step) {
    if (step == 20 && group.rank() == 1) {
      if (how == "kill") {
        static_cast<void>(::kill(::getpid(), SIGKILL));
      } else if (how == "throw") {
        throw std::runtime_error("rank 1 has had enough");
      } else if (how == "other_count") {
        values.resize(1'999'999);
      } else if (how == "leave") {
        return 0;
      } else if (how == "drop") {
        group.all_reduce(std::span(values), dtrain::ReduceOp::average, group.stream());
        return 0;
      } else if (how == "stop") {
        std::this_thread::sleep_for(std::chrono::minutes(1));
      }
    }
    group.all_reduce(std::span(values), dtrain::ReduceOp::average);
  }
}

/// Every rank leaves with work that has not run.
template <class Group>
int drop_all(const Group& group) {
  std::vector<float> values(2'000'000, 1);
  group.all_reduce(std::span(values), dtrain::ReduceOp::average);
  group.all_reduce(std::span(values), dtrain::ReduceOp::average, group.stream());
  std::puts("all right");
  return 0;
}

/// Averages that are exact in every type, so that no order of the ranks matters.
template <class Group>
int averages(const Group& group) {
  const auto bits = [](int value) {  // of bf16
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16U);
  };
  auto channel = dtrain::group::GroupAccess::of(group).open_channel("averages");
  for (const std::size_t count : {std::size_t{3}, std::size_t{300'001}}) {
    std::vector<double> values(count, 2.0 * group.rank());
    group.all_reduce(std::span(values), dtrain::ReduceOp::average);
    require(values.front() == group.world_size() - 1 && values.back() == values.front(), "an average of f64");
    const std::vector<std::uint16_t> halves(count, bits(2 * group.rank()));
    std::vector<std::uint16_t> result(count);
    channel.enqueue(
        dtrain::backend::AllReduce{{reinterpret_cast<const std::byte*>(halves.data()), count, dtrain::DType::bf16},
                                   {reinterpret_cast<std::byte*>(result.data()), count, dtrain::DType::bf16, {}},
                                   dtrain::ReduceOp::average},
        group.stream());
    typename Group::Stream::Event event;
    group.stream().record(event);
    dtrain::backend::block_until_complete(event, channel, *dtrain::group::GroupAccess::of(group).failure(),
                                          group.timeout(), group.rank());
    require(result == std::vector<std::uint16_t>(count, bits(group.world_size() - 1)), "an average of bf16");
    require(halves.back() == bits(2 * group.rank()), "the input of an average");
  }
  std::puts("all right");
  return 0;
}

/// Averages of elements at half of their type's largest value, whose sums overflow.
template <class Group>
int large(const Group& group) {
  using dtrain::DType;
  auto channel = dtrain::group::GroupAccess::of(group).open_channel("large");
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{3'000}, std::size_t{300'000}}) {
      const std::vector<std::byte> values = support::large_values(dtype, count);
      std::vector<std::byte> result(values.size());
      channel.enqueue(
          dtrain::backend::AllReduce{
              {values.data(), count, dtype}, {result.data(), count, dtype, {}}, dtrain::ReduceOp::average},
          group.stream());
      typename Group::Stream::Event event;
      group.stream().record(event);
      dtrain::backend::block_until_complete(event, channel, *dtrain::group::GroupAccess::of(group).failure(),
                                            group.timeout(), group.rank());
      require(support::is_large_value(dtype, result, 2 * group.world_size()), "an average of large values");
    }
  }
  std::puts("all right");
  return 0;
}

struct Model {
  std::vector<float> values = std::vector<float>(10);
  std::vector<float> gradients = std::vector<float>(10);
  std::vector<dtrain::Parameter> list{
      {"w", dtrain::tensor_view(values.data(), {10}), dtrain::tensor_view(gradients.data(), {10})}};
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
};

template <class Group>
int deterministic(const Group& group) {
  Model model;
  const dtrain::DistributedDataParallel ddp(model, group, {.deterministic = true});
  return 0;
}

std::atomic<bool> init_hangs{false};
std::atomic<bool> test_hangs{false};

/// MPI takes longer to start than this rank waits, and the rank tries again.
int late() {
  init_hangs = true;
  for (int i = 0; i < 2; ++i) {
    try {
      static_cast<void>(
          dtrain::backend::mpi::Engine::shared_blocking(dtrain::Deadline::after(std::chrono::seconds(1))));
    } catch (const dtrain::Error& error) {
      std::printf("%s\n", error.what());
    }
  }
  return 0;
}

/// A call to MPI hangs in the thread that waits for an operation.
template <class Group>
int hang(const Group& group) {
  hello(group);
  std::puts("hangs from now on");
  static_cast<void>(std::fflush(stdout));
  test_hangs = true;
  return hello(group);
}

/// A process group that fails, and another one in the same process.
int again() {
  using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::Mpi>;
  {
    const dtrain::ProcessGroup<Policy> group = dtrain::init_process_group<Policy>();
    auto channel = dtrain::group::GroupAccess::of(group).open_channel("fails");
    channel.abort({dtrain::CauseKind::exception, group.rank(), "", "enough"});
  }
  try {
    const dtrain::ProcessGroup<Policy> group = dtrain::init_process_group<Policy>();
  } catch (const dtrain::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}

template <class Backend>
int run(int argc, char** argv, std::string_view what) {
  using Policy = dtrain::Policy<dtrain::launch::Any, Backend>;
  const int exit_code = dtrain::run<Policy>(argc, argv, [what](dtrain::ProcessGroup<Policy> group, dtrain::Arguments) {
    return what == "hello"           ? hello(group)
           : what == "collectives"   ? collectives(group)
           : what == "crossed"       ? crossed(group)
           : what == "averages"      ? averages(group)
           : what == "large"         ? large(group)
           : what == "deterministic" ? deterministic(group)
           : what == "hang"          ? hang(group)
           : what == "drop_all"      ? drop_all(group)
                                     : endless(group, what);
  });
  if (dtrain::backend::mpi::has_ended()) {
    std::puts("has finalized MPI");
  }
  return exit_code;
}

}  // namespace

// Instead of MPI's own functions, which have a second name.
extern "C" {
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  while (init_hangs) {
    static_cast<void>(::pause());
  }
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Testsome(int count, MPI_Request requests[], int* done, int indices[], MPI_Status statuses[]) {
  while (test_hangs) {
    static_cast<void>(::pause());
  }
  return PMPI_Testsome(count, requests, done, indices, statuses);
}
}

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "hello";
  if (what == "again") return again();
  if (what == "late") return late();
  if (what.substr(0, 4) == "own_") return run<dtrain::backend::MpiCollectives>(argc, argv, what.substr(4));
  if (what.substr(0, 5) != "user_") return run<dtrain::backend::Mpi>(argc, argv, what);
  // A program that calls MPI itself, and has initialised it for one thread or for many.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, what == "user_single" ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &provided);
  const int exit_code = run<dtrain::backend::Mpi>(argc, argv, what == "user_hang" ? "hang" : "hello");
  int sum = 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("MPI still counts %d\n", sum);
  MPI_Finalize();
  return exit_code;
}

#else

int main() {
  std::puts("built without MPI");
  return 77;
}
#endif
