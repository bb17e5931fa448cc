#include "unit/launch/prelude.hpp"

using dtrain::launch::detail::secret_in_file;

namespace {

void write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  REQUIRE(file != nullptr);
  CHECK(std::fputs(text.c_str(), file) >= 0);
  CHECK(std::fclose(file) == 0);
}

Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

}  // namespace

TEST_CASE_FIXTURE(TemporaryFile, "a secret's file is read whole, without the white space at its end") {
  write_file(path, "sixteen letters!\n \n");
  CHECK(secret_in_file(path, soon()) == "sixteen letters!");
}

TEST_CASE_FIXTURE(TemporaryFile, "a secret's file may be a pipe, which is waited for until the deadline") {
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_ERROR(secret_in_file(path, Deadline::after(std::chrono::milliseconds(50))), dtrain::Errc::timeout,
              "DTRAIN_SECRET_FILE");
  const std::jthread writer([&] { write_file(path, "sixteen letters!\n"); });
  CHECK(secret_in_file(path, soon()) == "sixteen letters!");
}

TEST_CASE("a secret's file that is not there, or a directory, is named with the reason") {
  const support::TemporaryDirectory folder;
  for (const std::string& path : {folder.path + "/none", folder.path}) {
    CHECK_ERROR(secret_in_file(path, soon()), dtrain::Errc::usage, path);
  }
}
