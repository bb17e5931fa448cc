#include "unit/core/prelude.hpp"

namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text << "\n";
}

}  // namespace

TEST_CASE("a quota is a number of whole cores, at least one") {
  const support::TemporaryDirectory root;
  for (const std::pair<const char*, int>& each : {std::pair{"400000 100000", 4},
                                                  {"250000 100000", 2},
                                                  {"10000 100000", 1},
                                                  {"100000 50000", 2},
                                                  {"99999999999999999 1", 1 << 20}}) {
    CAPTURE(each.first);
    write(root.path + "/cpu.max", each.first);
    CHECK(cpu_quota_of_groups("0::/\n", root.path) == each.second);
  }
  for (const std::string text : {"max 100000", "", "nonsense", "100000 0"}) {
    CAPTURE(text);
    write(root.path + "/cpu.max", text);
    CHECK(cpu_quota_of_groups("0::/\n", root.path) == std::nullopt);
  }
}

TEST_CASE("the smallest quota of the groups above counts") {
  const support::TemporaryDirectory root;
  ::mkdir((root.path + "/pod").c_str(), 0700);
  ::mkdir((root.path + "/pod/container").c_str(), 0700);
  write(root.path + "/pod/container/cpu.max", "800000 100000");
  write(root.path + "/pod/cpu.max", "300000 100000");
  CHECK(cpu_quota_of_groups("0::/pod/container\n", root.path) == 3);
  CHECK(cpu_quota_of_groups("0::/host/path/of/container", root.path) == std::nullopt);
  write(root.path + "/cpu.max", "200000 100000");
  CHECK(cpu_quota_of_groups("0::/host/path/of/container", root.path) == 2);
}

TEST_CASE("the first version of control groups has quotas too, with two controllers in one line") {
  const support::TemporaryDirectory root;
  ::mkdir((root.path + "/cpu").c_str(), 0700);
  ::mkdir((root.path + "/cpu/job").c_str(), 0700);
  write(root.path + "/cpu/job/cpu.cfs_quota_us", "150000");
  write(root.path + "/cpu/job/cpu.cfs_period_us", "50000");
  write(root.path + "/cpu/cpu.cfs_quota_us", "-1");
  write(root.path + "/cpu/cpu.cfs_period_us", "100000");
  CHECK(cpu_quota_of_groups("3:cpu,cpuacct:/job\n2:cpuset:/\n", root.path) == 3);
  CHECK(cpu_quota_of_groups("3:cpuset:/job\n", root.path) == std::nullopt);
  write(root.path + "/cpu/job/cpu.cfs_quota_us", "-1");
  CHECK(cpu_quota_of_groups("3:cpu,cpuacct:/job\n", root.path) == std::nullopt);
}
