#include "dtrain/core/process/thread_activity.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "unit/core/prelude.hpp"

namespace {

/// What is said of a thread that runs `work(stop)` until `wanted` is said, or of the last try.
template <class Work>
std::string state_of_thread(Work work, const std::string& wanted) {
  std::atomic<pid_t> id{0};
  std::atomic<bool> stops{false};
  std::thread thread([&] {
    id = current_thread();
    work(stops);
  });
  ThreadActivity state;
  std::string said;
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (!said.starts_with(wanted) && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    said = state.look(id);
  }
  stops = true;
  return thread.join(), said;
}

/// The state of thread 7 of a machine with these files.
std::string state_by_files(const std::string& stat, const std::string& syscall, const std::string& wait) {
  const support::TemporaryDirectory root;
  const std::string folder = root.path + "/proc/self/task/7";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/stat") << stat << '\n';
  std::ofstream(folder + "/syscall") << syscall << '\n';
  std::ofstream(folder + "/wchan") << wait;
  return ThreadActivity(SystemFiles(root.path)).look(7);
}

}  // namespace

TEST_CASE("the share of the time in which a thread has had no core is that since the last look at the same thread") {
  const support::TemporaryDirectory root;
  const std::string folder = root.path + "/proc/self/task/7";
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& text) { std::ofstream(folder + "/schedstat") << text << '\n'; };
  ThreadActivity state{SystemFiles(root.path)};
  write("1000 2000 3");
  CHECK(state.core_wait(7) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  write("5000 20002000 9");  // 20 ms more
  const std::uint32_t share = state.core_wait(7);
  CHECK((share > 0 && share <= 200));
  write("5000 900020002000 9");
  CHECK(state.core_wait(7) == 1000);
  CHECK(state.core_wait(7) == 0);
  CHECK(state.core_wait(8) == 0);
  write("5000 999020002000 9");
  CHECK(state.core_wait(7) == 0);  // another thread was looked at meanwhile
  write("nothing");
  CHECK(state.core_wait(7) == 0);
}

TEST_CASE("a thread that computes runs, and one that reads from a pipe sleeps in read() of it") {
  CHECK(state_of_thread(
            [](std::atomic<bool>& stops) {
              while (!stops) {
              }
            },
            "runs")
            .starts_with("runs"));
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const auto read = [&](std::atomic<bool>& stops) {
    std::thread writer([&] {
      while (!stops)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK(::write(ends[1], "x", 1) == 1);
    });
    char byte = 0;
    CHECK(::read(ends[0], &byte, 1) == 1);
    writer.join();
  };
  const std::string wanted = "sleeps in read() of pipe:[";
  const std::string said = state_of_thread(read, wanted);
  CHECK_MESSAGE(said.starts_with(wanted), said);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("the id of a thread is its own") {
  pid_t other = 0;
  std::thread([&] { other = current_thread(); }).join();
  CHECK(current_thread() == ::getpid());
  CHECK(other != current_thread());
  CHECK(other > 0);
}

TEST_CASE("the states of /proc are read, whatever the name of the thread") {
  const std::string rest = " 1 1 1 0 -1 0 0 0 0 0 10 20 0 0 20 0 1 0 100";
  CHECK(state_by_files("7 (a) R (b) R" + rest, "running", "0") == "runs");
  CHECK(state_by_files("7 (a) T" + rest, "", "0") == "is stopped");
  CHECK(state_by_files("7 (a) S" + rest, "", "0") == "sleeps");
  CHECK(state_by_files("7 (a) S" + rest, "202 0x1", "0") == "sleeps in futex(), such as for a lock or another thread");
  CHECK(state_by_files("7 (a) S" + rest, "9999 0x1", "0") == "sleeps in system call 9999");
  CHECK(state_by_files("7 (a) D" + rest, "", "nfs_wait_bit") == "is blocked in the kernel: nfs_wait_bit");
  CHECK(state_by_files("7 (a) D" + rest, "74 0xffff", "0") == "is blocked in fsync()");
  for (const char* const text : {"", "7 (a", "7 (a) ", "nothing"})
    CHECK(state_by_files(text, "0 0x0", "0") == "");
}

TEST_CASE("a thread that is not there has no state") {
  ThreadActivity state;
  CHECK(state.look(0) == "");
  CHECK(state.look(-1) == "");
}
