#include "unit/launch/prelude.hpp"

TEST_CASE_FIXTURE(TemporaryFile, "a log file is emptied when it is opened, and has what was written") {
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

TEST_CASE_FIXTURE(TemporaryFile, "a log file that takes nothing more says once which it is, and why") {
  REQUIRE(::symlink("/dev/full", path.c_str()) == 0);
  std::vector<std::string> said;
  LogFile file(path, [&said](const std::string& what) { said.push_back(what); });
  CHECK(!file.write("lost\n"));
  CHECK(file.write("not tried any more\n"));
  CHECK(said == std::vector<std::string>{"writing " + path + ": No space left on device"});
}

TEST_CASE_FIXTURE(TemporaryFile, "a pipe that nobody reads is refused as a log file, not waited for") {
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK_THROWS_AS(LogFile{path}, dtrain::Error);
}
