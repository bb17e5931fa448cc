#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::shared_memory::ReduceSlice;
using dtrain::backend::shared_memory::slice_of;

TEST_CASE("slices are whole cache lines and cover every element once") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 1000U, 4096U, 100'001U}) {
      std::size_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ReduceSlice slice = slice_of(count, ranks, rank);
        CHECK(slice.begin == next);
        CHECK((slice.begin % 64 == 0 || slice.begin == count));
        CHECK(slice.end >= slice.begin);
        next = slice.end;
      }
      CHECK(next == count);
    }
  }
}

}  // namespace
