#pragma once
// How a job ends of which a rank was killed, over any backend.

#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "support/contains.hpp"
#include "support/program.hpp"

namespace support {

/// Rank 1 of three was killed in its tenth step: the others name it and end within 2 s.
/// @param well the same job without that
/// @param killed with DTRAIN_LOG=debug: each rank's sentence in a line of its own
/// @param ends_slowly whether a rank may need seconds to end, so that the launcher kills it after its grace
inline void check_killed_rank_is_named(const Result& well, const Result& killed, bool ends_slowly = false) {
  CAPTURE(killed.error);
  CHECK(killed.exit_code == 128 + 9);
  for (const std::string rank : {"0", "2"})
    CHECK(contains(killed.error, "[" + rank + "] dtrain: rank " + rank + ": ends because rank 1 on host"));
  CHECK(contains(killed.error, "was lost: killed by signal 9"));
  CHECK((ends_slowly || contains(killed.error, "with exit code 75: ranks 0 and 2")));
  // Ten steps, 2 s, and a busy machine.
  CHECK(killed.time < well.time + std::chrono::seconds(is_sanitized || ends_slowly ? 12 : 4));
}

}  // namespace support
