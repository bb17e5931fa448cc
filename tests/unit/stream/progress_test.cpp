#include "dtrain/stream/host/progress.hpp"

#include "unit/stream/prelude.hpp"

namespace {

TEST_CASE("progress has three names, and its own name leads back to each") {
  for (const Progress progress : {Progress::automatic, Progress::thread, Progress::caller})
    CHECK(progress_from(dtrain::stream::host::name(progress)) == progress);
}

TEST_CASE("an unknown progress is a usage error that names the possible ones") {
  for (const char* text : {"", "Thread", "threads", "inline"}) {
    CAPTURE(text);
    CHECK_ERROR(progress_from(text), dtrain::Errc::usage, "automatic, thread and caller");
  }
}

TEST_CASE("automatic progress takes a thread only where a core is free for it") {
  CHECK(decide(Progress::automatic, 4, 4, 2) == Progress::thread);
  CHECK(decide(Progress::automatic, 4, 2, 2) == Progress::thread);
  CHECK(decide(Progress::automatic, 3, 1, 2) == Progress::caller);
  CHECK(decide(Progress::automatic, 2, 2, 2) == Progress::caller);
  CHECK(decide(Progress::automatic, 1, 1, 8) == Progress::caller);
  CHECK(decide(Progress::thread, 1, 1, 8) == Progress::thread);
  CHECK(decide(Progress::caller, 64, 64, 1) == Progress::caller);
}

}  // namespace
