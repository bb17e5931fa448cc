#include <map>
#include <numeric>
#include <random>

#include "unit/public_interface/prelude.hpp"

namespace {

using dtrain::group::RowSum;
using Ids = std::vector<std::int64_t>;

template <class T>
double number(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<float>(value);
  }
}

/// Rows of small numbers, whose sums are exact.
template <class T>
std::vector<T> rows_of(const Ids& ids, std::size_t width, int rank) {
  std::vector<T> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t k = 0; k < width; ++k)
      rows.push_back(
          static_cast<T>(static_cast<float>((ids[i] * 7 + static_cast<std::int64_t>(k + i) + rank) % 13 - 3)));
  }
  return rows;
}

/// The lists of each rank, made alike on all.
template <class T>
void check_rows(const Group& group, const std::vector<Ids>& lists, std::size_t width, RowSum<T>& sum, ReduceOp op) {
  CAPTURE(dtrain::name(op));
  const auto me = static_cast<std::size_t>(group.rank());
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const std::vector<T> mine = rows_of<T>(lists[me], width, group.rank());
  group.all_reduce_rows(lists[me], mine, sum, op);
  // The dense table over the ids, in the order of the result: reduced by the group's own reduce and a broadcast.
  std::map<std::int64_t, std::size_t> places;
  for (std::size_t i = 0; i < sum.ids().size(); ++i)
    CHECK(places.emplace(sum.ids()[i], i).second);
  std::set<std::int64_t> all;
  for (const Ids& list : lists)
    all.insert(list.begin(), list.end());
  CHECK(places.size() == all.size());
  for (const std::int64_t id : all)
    CHECK(places.count(id) == 1);
  const bool adds = op == ReduceOp::sum || op == ReduceOp::average;
  const double missing = adds ? 0 : op == ReduceOp::min ? 1000 : op == ReduceOp::max ? -1000 : 1;
  std::vector<T> dense(all.size() * width, static_cast<T>(static_cast<float>(missing)));
  for (std::size_t i = 0; i < lists[me].size(); ++i) {
    T* const row = &dense[places.at(lists[me][i]) * width];
    for (std::size_t k = 0; k < width; ++k) {
      const auto value = number(mine[i * width + k]);
      const auto before = number(row[k]);
      row[k] = static_cast<T>(static_cast<float>(adds                  ? before + value
                                                 : op == ReduceOp::min ? std::min(before, value)
                                                 : op == ReduceOp::max ? std::max(before, value)
                                                                       : before * value));
    }
  }
  group.reduce(dense, static_cast<int>(ranks) - 1, op);
  group.broadcast(dense, static_cast<int>(ranks) - 1);
  bool right = true;
  for (std::size_t i = 0; i < dense.size(); ++i)
    right = right && number(dense[i]) == number(sum.rows()[i]);
  CHECK(right);
  std::vector<T> of_rank_0(sum.rows().begin(), sum.rows().end());
  group.broadcast(of_rank_0, 0);
  CHECK((of_rank_0.empty() || std::memcmp(of_rank_0.data(), sum.rows().data(), sum.rows().size_bytes()) == 0));
}

std::vector<std::vector<Ids>> cases(int ranks) {
  std::mt19937_64 random(17);
  std::vector<Ids> shuffled, equal, disjoint, duplicates, some_empty, zipf, huge;
  for (int rank = 0; rank < ranks; ++rank) {
    Ids ids(200);
    std::iota(ids.begin(), ids.end(), rank * 50);  // neighbours share three quarters
    std::shuffle(ids.begin(), ids.end(), random);
    shuffled.push_back(ids);
    equal.push_back({5, 3, 1'000'000, 0});
    disjoint.push_back({rank, rank + 100, rank + 10'000});
    duplicates.push_back({7, 1, 7, rank, 7, 1});
    some_empty.push_back(rank % 2 == 0 ? Ids() : Ids{rank, 4, 2});
    Ids frequent;
    for (int i = 0; i < 3000; ++i)
      frequent.push_back(static_cast<std::int64_t>(1.0 / (1e-5 + static_cast<double>(random() % 100'000) * 1e-5)));
    zipf.push_back(frequent);
    huge.push_back({std::numeric_limits<std::int64_t>::max(), 1, std::int64_t{1} << 40});
  }
  return {shuffled, equal, disjoint, duplicates, some_empty, std::vector<Ids>(static_cast<std::size_t>(ranks)),
          zipf,     huge};
}

}  // namespace

TEST_CASE("rows are reduced to what the dense table's reduce gives, by every operation, on 1 to 4 ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    run_well(ranks, [&](const Group& group) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
        RowSum<float> sum(5);
        RowSum<double> wide(64);
        RowSum<float16> half(3);
        RowSum<std::int64_t> integers(1);
        for (const std::vector<Ids>& lists : cases(ranks)) {  // one RowSum for all sizes
          check_rows(group, lists, 5, sum, op);
          check_rows(group, lists, 64, wide, op);
          check_rows(group, lists, 1, integers, op);
        }
        check_rows(group, cases(ranks)[3], 3, half, op);
      }
      RowSum<double> products(2);
      check_rows(group, cases(ranks)[4], 2, products, ReduceOp::product);
    });
  }
}

TEST_CASE("ids that are sorted by frequency give no rank more than 1.5 times the mean of rows") {
  constexpr std::size_t ranks = 4;
  run_well(ranks, [](const Group& group) {
    // Zipf: of the first ids nearly all are there, of the later ones few.
    Ids ids;
    std::mt19937_64 random(5 + static_cast<std::uint64_t>(group.rank()));
    for (std::int64_t id = 0; id < 200'000; ++id) {
      if (random() % static_cast<std::uint64_t>(1 + id / 50) == 0) ids.push_back(id);
    }
    RowSum<float> sum(1);
    group.all_reduce_rows(ids, std::vector<float>(ids.size(), 1), sum);
    std::array<std::size_t, ranks> owned{};
    for (const std::int64_t id : sum.ids())
      ++owned[dtrain::group::detail::owner_of(id, ranks)];
    for (const std::size_t rows : owned)
      CHECK(static_cast<double>(rows) < 1.5 * static_cast<double>(sum.ids().size()) / ranks);
  });
}

TEST_CASE("bad ids and lengths are named on their rank, unequal widths on all") {
  run_well(2, [](const Group& group) {
    RowSum<float> sum(2);
    const std::vector<float> rows(6, 1);
    CHECK_ERROR(group.all_reduce_rows(Ids{1, 2}, rows, sum), Errc::invalid_argument,
                "2 ids, rows of 2 elements, and 6");
    CHECK_ERROR(group.all_reduce_rows(Ids{1, -2, 3}, rows, sum), Errc::invalid_argument, "id 1 of the list is -2");
    group.all_reduce_rows(Ids{1, 2, 3}, rows, sum);
    CHECK(sum.row(2).size() == 2);
    CHECK(sum.row(2)[1] == 2);
    group.all_reduce_rows(Ids(), std::vector<float>(), sum);
    CHECK(sum.ids().empty());
    CHECK(sum.rows().empty());
  });
  expect_ends(2, {"all_reduce_rows: rank ", "the same width on every rank"}, [](const Group& group) {
    RowSum<float> sum(group.rank() == 0 ? 2 : 3);
    group.all_reduce_rows(Ids{1}, std::vector<float>(group.rank() == 0 ? 2 : 3), sum);
  });
}
