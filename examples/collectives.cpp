// Every collective of a process group once, on any number of ranks; each rank prints what it got.
//   collectives --nproc-per-node=3

#include <array>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <numeric>
#include <string>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

struct Split {
  double gain;
  int feature;
};

/// "rank 1: all_gather 0 1 2"
template <class Values>
void print(const Group& group, const char* what, const Values& values) {
  std::string line = "rank " + std::to_string(group.rank()) + ": " + what;
  for (const auto value : values) {
    line += " " + std::to_string(static_cast<int>(value));
  }
  std::puts(line.c_str());
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group) {
    const int rank = group.rank();
    const int ranks = group.world_size();

    std::vector<float> sums{static_cast<float>(rank), 1};
    group.all_reduce(sums);
    print(group, "all_reduce", sums);  // the sum of the ranks, and their number

    std::array<double, 1> from_last{rank * 10.0};
    group.broadcast(from_last, ranks - 1);
    print(group, "broadcast", from_last);  // what the last rank had

    std::vector<std::int32_t> table(static_cast<std::size_t>(ranks), rank + 1);
    std::array<std::int32_t, 1> share{};
    group.reduce_scatter(table, share, dtrain::ReduceOp::product);
    print(group, "reduce_scatter", share);  // this rank's element of the product of all tables

    const std::array<std::int64_t, 1> mine{rank * rank};
    std::vector<std::int64_t> squares(static_cast<std::size_t>(ranks));
    group.all_gather(mine, squares);
    print(group, "all_gather", squares);  // one from each rank

    std::vector<float> total{static_cast<float>(rank)};
    group.reduce(total, 0);
    print(group, "reduce", total);  // the sum on rank 0; the others keep their values

    group.gather(mine, squares, 0);  // on rank 0 alone
    std::array<std::int64_t, 1> own_again{};
    group.scatter(squares, own_again, 0);
    print(group, "gather and scatter", own_again);

    std::vector<std::int32_t> transposed(table.size());
    group.all_to_all(table, transposed);
    print(group, "all_to_all", transposed);  // one from each rank's table

    // Rank r has r + 1 numbers, and every rank gets all of them.
    const std::vector<double> some(static_cast<std::size_t>(rank) + 1, rank);
    const std::vector<std::size_t> counts = group.all_gather(some.size());
    std::vector<double> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    group.all_gather_v(some, all, counts);
    print(group, "all_gather_v", all);

    // A reduction of one's own: the split with the greatest gain, and of equal ones that of the lowest rank.
    Split best{static_cast<double>(rank % 2), rank};
    best = group.all_reduce(best, [](const Split& a, const Split& b) { return b.gain > a.gain ? b : a; });
    print(group, "the best split is feature", std::array<int, 1>{best.feature});

    // Each rank has changed two rows of a table. `changes` has each row that some rank has changed, and its sum.
    std::vector<float> weights(2 * static_cast<std::size_t>(ranks + 1));
    dtrain::group::RowSum<float> changes(2);
    group.all_reduce_rows(std::array<std::int64_t, 2>{rank, rank + 1}, std::array<float, 4>{1, 2, 1, 2}, changes);
    for (std::size_t i = 0; i < changes.ids().size(); ++i) {
      const auto row = static_cast<std::size_t>(changes.ids()[i]);
      weights[2 * row] += changes.row(i)[0];
      weights[2 * row + 1] += changes.row(i)[1];
    }
    print(group, "all_reduce_rows", weights);

    // The settings that rank 0 has read, of any length; and whether all ranks have them.
    std::string settings = rank == 0 ? "rate=0.1" : "";
    group.broadcast_resized(settings, 0);
    print(group, "all have the settings", std::array<bool, 1>{group.all(settings == "rate=0.1")});

    std::array<std::int64_t, 1> before{};
    group.send_recv(mine, (rank + 1) % ranks, before, (rank + ranks - 1) % ranks);
    print(group, "send_recv", before);  // once around the ring

    std::array<std::uint8_t, 2> letter{};
    if (rank == 0) {
      for (int other = 1; other < ranks; ++other) {
        group.send(std::array<std::uint8_t, 2>{4, static_cast<std::uint8_t>(other)}, other);
      }
    } else {
      group.recv(letter, 0);
      print(group, "recv", letter);  // from rank 0
    }

    const Group half = group.split(rank % 2);  // the even ranks, and the odd ones
    std::array<double, 1> sum_of_half{static_cast<double>(rank)};
    half.all_reduce(sum_of_half, dtrain::ReduceOp::sum);
    print(group, "all_reduce of its half", sum_of_half);

    // With a stream a collective is enqueued and returns. It runs when somebody waits, or beside other work.
    std::vector<float> later{1};
    auto work = group.all_reduce(later, dtrain::ReduceOp::max, group.stream());
    group.barrier(group.stream());  // its Work is dropped; it runs in its order all the same
    work.wait();
    print(group, "all_reduce on a stream", later);
    return 0;
  });
}
