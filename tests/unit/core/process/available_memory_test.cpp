#include "unit/core/prelude.hpp"

namespace {

constexpr std::uint64_t unbounded = std::numeric_limits<std::uint64_t>::max();

/// A control group's files, as the kernel writes them.
void write_group(const std::string& folder, const std::string& limit_name, const std::string& limit,
                 const std::string& usage_name, const std::string& usage, const std::string& files = "") {
  std::ofstream(folder + "/" + limit_name) << limit << "\n";
  std::ofstream(folder + "/" + usage_name) << usage << "\n";
  std::ofstream(folder + "/memory.stat") << "anon 5\nfile 300\n"
                                         << files << "inactive_file 200\n"
                                         << files << "active_file 100\n";
}

TEST_CASE("a control group leaves its limit less what it uses, without pages of files") {
  const support::TemporaryDirectory root;
  ::mkdir((root.path + "/job").c_str(), 0700);
  write_group(root.path + "/job", "memory.max", "5000", "memory.current", "1300");
  CHECK(available_in_groups("0::/job\n", root.path) == 4000);
  write_group(root.path + "/job", "memory.max", "max", "memory.current", "1300");
  CHECK(available_in_groups("0::/job\n", root.path) == unbounded);
  write_group(root.path + "/job", "memory.max", "1000", "memory.current", "9300");
  CHECK(available_in_groups("0::/job\n", root.path) == 0);
}

TEST_CASE("the tightest group above counts, also the container's root where the path is the host's") {
  const support::TemporaryDirectory root;
  ::mkdir((root.path + "/job").c_str(), 0700);
  ::mkdir((root.path + "/job/step").c_str(), 0700);
  write_group(root.path + "/job/step", "memory.max", "9000", "memory.current", "300");
  write_group(root.path + "/job", "memory.max", "5000", "memory.current", "300");
  CHECK(available_in_groups("0::/job/step\n", root.path) == 5000);
  write_group(root.path, "memory.max", "700", "memory.current", "300");
  CHECK(available_in_groups("0::/host/path/of/container", root.path) == 700);
}

TEST_CASE("the first version of control groups is read too, and lines of other controllers are not") {
  const support::TemporaryDirectory root;
  ::mkdir((root.path + "/memory").c_str(), 0700);
  ::mkdir((root.path + "/memory/job").c_str(), 0700);
  write_group(root.path + "/memory/job", "memory.limit_in_bytes", "5000", "memory.usage_in_bytes", "1300", "total_");
  CHECK(available_in_groups("8:pids:/\n4:memory:/job\n0::/\n", root.path) == 4000);
  CHECK(available_in_groups("8:pids:/job\nnonsense\n:\n\n", root.path) == unbounded);
}

}  // namespace
