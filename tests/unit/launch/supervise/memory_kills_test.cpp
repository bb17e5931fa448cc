#include "dtrain/launch/supervise/supervisor.hpp"
#include "unit/launch/prelude.hpp"

namespace {

constexpr ExitStatus killed{0, SIGKILL};

void set_kills(const Machine& machine, const std::string& folder, int kills) {
  machine.write(folder + "/memory.events",
                "low 0\nhigh 0\nmax 7\noom 9\noom_kill " + std::to_string(kills) + "\noom_group_kill 0");
}

}  // namespace

TEST_CASE("each kill of the kernel's since the start explains one worker's end, with the tightest limit") {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/job/step");
  set_kills(machine, "/sys/fs/cgroup/job/step", 3);
  set_kills(machine, "/sys/fs/cgroup/job", 5);
  machine.write("/sys/fs/cgroup/job/step/memory.max", "max");
  machine.write("/sys/fs/cgroup/job/memory.max", "4294967296");
  MemoryKills kills(machine.files());
  CHECK(kills.explain(killed, false) == "");
  set_kills(machine, "/sys/fs/cgroup/job", 9);  // of another step
  CHECK(kills.explain(killed, false) == "");
  set_kills(machine, "/sys/fs/cgroup/job/step", 5);
  CHECK(kills.explain({1, 0}, false) == "");
  CHECK(kills.explain(killed, true) == "");
  CHECK(kills.explain(killed, false) == " (out of memory: the cgroup's limit is 4 GiB)");
  CHECK(kills.explain(killed, false) == " (out of memory: the cgroup's limit is 4 GiB)");
  CHECK(kills.explain(killed, false) == "");
}

TEST_CASE("a group without a limit was killed for the host's memory") {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/");
  set_kills(machine, "/sys/fs/cgroup", 0);
  MemoryKills kills(machine.files());
  set_kills(machine, "/sys/fs/cgroup", 1);
  CHECK(kills.explain(killed, false) == " (out of memory: the host has no more)");
}

TEST_CASE("the first version of control groups counts too, below the container's root if the path is the host's") {
  const Machine machine;
  machine.write("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/12ab\n0::/docker/12ab");
  const std::string file = "/sys/fs/cgroup/memory/memory.oom_control";
  machine.write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 2");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1610612736");
  MemoryKills kills(machine.files());
  CHECK(kills.explain(killed, false) == "");
  machine.write(file, "oom_kill_disable 0\nunder_oom 0\noom_kill 3");
  CHECK(kills.explain(killed, false) == " (out of memory: the cgroup's limit is 1536 MiB)");
}

TEST_CASE("a kernel that does not count explains nothing") {
  const Machine machine;
  MemoryKills kills(machine.files());
  CHECK(kills.explain(killed, false) == "");
}

TEST_CASE("a size has the largest unit that divides it") {
  CHECK(MemoryKills::size_text(1000) == "1000 bytes");
  CHECK(MemoryKills::size_text(3 << 10) == "3 KiB");
  CHECK(MemoryKills::size_text(std::uint64_t{1} << 40) == "1 TiB");
  CHECK(MemoryKills::size_text(std::uint64_t{3000} << 40) == "3000 TiB");
}
