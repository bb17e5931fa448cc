// ctest: TIMEOUT 300
// Python reads what dtrain writes, and dtrain what Python writes, to the byte: 2,000 random lists each.

#include "integration/prelude.hpp"

namespace {

using support::peer_python;

const std::string peer_program = DTRAIN_TEST_PROGRAMS_DIR "/safetensors_probe";
const std::string lists = "2000";

Result run(const std::string& program, std::vector<std::string> arguments) {
  if (program != peer_program)
    arguments.insert(arguments.begin(), {"-B", DTRAIN_TEST_SUPPORT_DIR "/safetensors_peer.py"});
  return support::run(program, arguments, {}, std::chrono::seconds(120));
}

void check_good(const Result& result) {
  CAPTURE(result.output);
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
}

}  // namespace

TEST_CASE("Python and dtrain read each other's files") {
  const support::TemporaryDirectory folder;
  check_good(run(peer_program, {"write", folder.path, lists}));
  check_good(run(peer_python(), {"read", folder.path, lists}));
  check_good(run(peer_program, {"read", folder.path, lists}));
  check_good(run(peer_python(), {"write", folder.path, lists}));
  check_good(run(peer_program, {"read", folder.path, lists}));
}

TEST_CASE("a file that another program wrote again with the former digest is refused by its sentence") {
  const support::TemporaryDirectory folder;
  check_good(run(peer_program, {"write", folder.path, "1"}));
  check_good(run(peer_python(), {"stale", folder.path}));
  const Result refused = run(peer_program, {"read", folder.path, "1"});
  CHECK(refused.exit_code == 1);
  CHECK_CONTAINS(refused.output,
                 "was written again by a program that copied the metadata; load another file, or leave");
}

TEST_CASE("the package safetensors took part in these tests") {
  static_cast<void>(dtrain_test::needs(run(peer_python(), {"package"}).exit_code == 0,
                                       peer_python() + " has no safetensors; DTRAIN_PEER_PYTHON names one that has"));
}
