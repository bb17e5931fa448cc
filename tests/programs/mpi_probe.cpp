// One rank of a job over MPI that does what its first argument says; tests/integration/mpi_test.cpp starts it.
#include <dtrain/dtrain.hpp>
#if DTRAIN_WITH_MPI

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "support/element_bytes.hpp"
#include "support/scalar_reduction.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi>;
using Group = dtrain::ProcessGroup<Policy>;
using Bytes = std::vector<std::byte>;

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(std::string("wrong: ") + what);
  }
}

int hello(const Group& group) {
  double sum = group.rank();
  group.all_reduce_blocking(std::span(&sum, 1), dtrain::ReduceOp::sum);
  std::printf("rank %d of %d: sum %.0f\n", group.rank(), group.world_size(), sum);
  return 0;
}

/// Every collective with every type, small and large, against a plain loop.
int collectives(const Group& group) {
  const int size = group.world_size();
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto stream = group.stream();
  auto channel = group.open_channel("probe");
  const auto wait = [&] {
    typename Group::Stream::Event event;
    stream.record(event);
    dtrain::backend::block_until_complete(event, channel, *group.failure(), group.timeout(), group.rank());
  };
  for (const dtrain::DType dtype : support::all_dtypes) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{5000}, std::size_t{1'000'003}}) {
      std::vector<Bytes> given;
      for (int peer = 0; peer < size; ++peer) {
        given.push_back(support::awkward_bytes(dtype, count, static_cast<std::uint64_t>(peer) + count));
      }
      const Bytes expected = support::scalar_reduction(dtype, dtrain::ReduceOp::max, given);
      Bytes memory = given[rank];
      const dtrain::BufferView view{memory.data(), count, dtype, {}};
      channel.all_reduce(view, view, dtrain::ReduceOp::max, stream);
      wait();
      require(memory == expected, "all_reduce");
      const int root = size - 1;
      memory = given[rank];
      channel.broadcast(view, root, stream);
      wait();
      require(memory == given[static_cast<std::size_t>(root)], "broadcast");
      const int next = (group.rank() + 1) % size;
      const int previous = (group.rank() + size - 1) % size;
      Bytes output(given[rank].size());
      const dtrain::ConstBufferView input(given[rank].data(), count, dtype);
      channel.send_recv(input, next, {output.data(), count, dtype, {}}, previous, stream);
      wait();
      require(output == given[static_cast<std::size_t>(previous)], "send_recv");
      Bytes all(output.size() * static_cast<std::size_t>(size));
      const dtrain::BufferView gathered{all.data(), count * static_cast<std::size_t>(size), dtype, {}};
      channel.all_gather(input, gathered, stream);
      channel.reduce_scatter(gathered, {output.data(), count, dtype, {}}, dtrain::ReduceOp::min, stream);
      wait();
      const std::vector<Bytes> same(static_cast<std::size_t>(size), given[rank]);
      require(output == support::scalar_reduction(dtype, dtrain::ReduceOp::min, same), "all_gather and reduce_scatter");
      channel.barrier(stream);
      wait();
    }
  }
  const Group half = group.split_blocking(group.rank() % 2, -group.rank());
  int sum = group.rank();
  half.all_reduce_blocking(std::span(&sum, 1), dtrain::ReduceOp::sum);
  int expected = 0;
  for (int peer = group.rank() % 2; peer < size; peer += 2) {
    expected += peer;
  }
  require(sum == expected, "a split group's all_reduce");
  std::puts("all right");
  return 0;
}

/// Two channels, each rank in another order: they never wait for each other.
int crossed(const Group& group) {
  auto first = group.open_channel("first");
  auto second = group.open_channel("second");
  auto first_stream = group.open_stream();
  auto second_stream = group.open_stream();
  std::vector<float> a(3'000'000, 1);
  std::vector<float> b(3'000'000, 2);
  const auto start = [](auto& channel, auto& stream, std::vector<float>& values) {
    const dtrain::BufferView view = dtrain::buffer_view(std::span(values));
    channel.all_reduce(view, view, dtrain::ReduceOp::sum, stream.ref());
  };
  const auto finish = [&](auto& channel, auto& stream) {
    typename Group::Stream::Event event;
    stream.ref().record(event);
    dtrain::backend::block_until_complete(event, channel, *group.failure(), group.timeout(), group.rank());
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
      } else if (how == "stop") {
        std::this_thread::sleep_for(std::chrono::minutes(1));
      }
    }
    group.all_reduce_blocking(std::span(values), dtrain::ReduceOp::average);
  }
}

int run(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    const std::string_view what = arguments.size() > 1 ? arguments[1] : "hello";
    return what == "hello"         ? hello(group)
           : what == "collectives" ? collectives(group)
           : what == "crossed"     ? crossed(group)
                                   : endless(group, what);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what.substr(0, 5) != "user_") {
    return run(argc, argv);
  }
  // A program that calls MPI itself, and has initialised it for one thread or for many.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, what == "user_multiple" ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &provided);
  char hello[] = "hello";
  argv[1] = hello;
  const int exit_code = run(argc, argv);
  int sum = 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("MPI still counts %d\n", sum);
  MPI_Finalize();
  return exit_code;
}

#else
#include <cstdio>

int main() {
  std::puts("built without MPI");
  return 77;
}
#endif
