#include "dtrain/launch/output/output_relay.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

using dtrain::launch::LogFile;

TEST_CASE("a log file is emptied when it is opened, and has what was written") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/rank0.log";
  for (const char* text : {"the first attempt\n", "the second\n"}) {
    LogFile file(path);
    CHECK(file.write(text));
  }
  std::FILE* file = std::fopen(path.c_str(), "re");
  REQUIRE(file != nullptr);
  char text[64] = {};
  CHECK(std::fread(text, 1, sizeof text - 1, file) == 11);
  CHECK(std::fclose(file) == 0);
  CHECK(std::string(text) == "the second\n");
}

TEST_CASE("a log file that takes nothing more says once which it is, and why") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/rank0.log";
  REQUIRE(::symlink("/dev/full", path.c_str()) == 0);
  std::vector<std::string> said;
  LogFile file(path, [&said](const std::string& what) { said.push_back(what); });
  CHECK(!file.write("lost\n"));
  CHECK(file.write("not tried any more\n"));
  CHECK(said == std::vector<std::string>{"writing " + path + ": No space left on device"});
}

TEST_CASE("a pipe that nobody reads is refused as a log file, not waited for") {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/rank0.log";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(LogFile{path}, dtrain::Error);
}
