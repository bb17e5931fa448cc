#include "dtrain/launch/configuration/settings.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "support/temporary_directory.hpp"

using dtrain::Deadline;
using dtrain::launch::detail::secret_in_file;

namespace {

void write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  REQUIRE(file != nullptr);
  CHECK(std::fputs(text.c_str(), file) >= 0);
  CHECK(std::fclose(file) == 0);
}

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

}  // namespace

TEST_CASE("a secret's file is read whole, without the white space at its end") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/secret";
  write_file(path, "sixteen letters!\n \n");
  CHECK(secret_in_file(path, soon()) == "sixteen letters!");
}

TEST_CASE("a secret's file may be a pipe, which is waited for until the deadline") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  try {
    static_cast<void>(secret_in_file(path, Deadline::after(std::chrono::milliseconds(50))));
    FAIL("nobody writes");
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::timeout));
    CHECK(std::string(error.what()).find("DTRAIN_SECRET_FILE") != std::string::npos);
  }
  const std::jthread writer([&] { write_file(path, "sixteen letters!\n"); });
  CHECK(secret_in_file(path, soon()) == "sixteen letters!");
}

TEST_CASE("a secret's file that is not there, or a directory, is named with the reason") {
  const support::TemporaryDirectory folder;
  for (const std::string& path : {folder.path + "/none", folder.path}) {
    try {
      static_cast<void>(secret_in_file(path, soon()));
      FAIL("it has no secret");
    } catch (const dtrain::Error& error) {
      CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::usage));
      CHECK(std::string(error.what()).find(path) != std::string::npos);
    }
  }
}
