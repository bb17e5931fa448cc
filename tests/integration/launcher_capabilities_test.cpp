// ctest: TIMEOUT 120
// A program whose file has capabilities, which exec takes as a reason to untie a worker from its launcher.

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "integration/prelude.hpp"

namespace {

/// As `setcap cap_ipc_lock+ep PATH` does. @returns 0, or the error
int give_ipc_lock(const std::string& path) {
  vfs_cap_data capabilities{};
  capabilities.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
  capabilities.data[0].permitted = 1U << CAP_IPC_LOCK;
  return ::setxattr(path.c_str(), "security.capability", &capabilities, XATTR_CAPS_SZ_2, 0) == 0 ? 0 : errno;
}

}  // namespace

TEST_CASE("kill -9 of the launcher leaves no worker of a program whose file has capabilities") {
  const std::string setpriv = "/usr/bin/setpriv";
  if (::geteuid() != 0 || ::access(setpriv.c_str(), X_OK) != 0) {
    return dtrain_test::skip("needs root and setpriv, to start a program with capabilities as another user");
  }
  const support::TemporaryDirectory folder;
  REQUIRE(::chmod(folder.path.c_str(), 0755) == 0);
  const std::string program = folder.path + "/launch_probe";
  std::filesystem::copy_file(support::probe, program);
  REQUIRE(::chmod(program.c_str(), 0755) == 0);
  struct statvfs mount {};
  REQUIRE(::statvfs(folder.path.c_str(), &mount) == 0);
  const int refused = (mount.f_flag & ST_NOSUID) != 0 ? EPERM : give_ipc_lock(program);
  if (refused != 0) {
    return dtrain_test::skip("files in " + folder.path + " cannot have capabilities: " + std::strerror(refused));
  }
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    const std::string mark = support::new_mark();
    support::Program launcher(setpriv, {"--reuid=65534", "--regid=65534", "--clear-groups", "--", program, mark,
                                        "--nproc-per-node=2", "*:join", "*:stdout:up\n", "*:sleep:60000"});
    REQUIRE_MESSAGE((launcher.wait_for("[0] up") && launcher.wait_for("[1] up")), launcher.wait().error);
    const auto workers = support::children_of(launcher.process());
    REQUIRE(workers.size() == 2);
    const std::string status = support::content("/proc/" + std::to_string(workers[0]) + "/status");
    CHECK_CONTAINS(status, "CapEff:\t0000000000004000\n");
    launcher.signal(SIGKILL);
    CHECK(launcher.wait().exit_code == 137);
    CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
    for (const pid_t left : support::processes_with(mark))
      ::kill(left, SIGKILL);
  }
}
