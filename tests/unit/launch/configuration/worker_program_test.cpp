#include "dtrain/launch/configuration/worker_program.hpp"
#include "unit/launch/prelude.hpp"

TEST_CASE("a program is started from its own path, which is the file that runs") {
  char path[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", path, sizeof path - 1) > 0);
  CHECK(own_program() == path);
}

TEST_CASE("what stands before argv on the command line is the loader's") {
  const auto loader = [](const Words& line, const Words& argv) {
    std::string text;
    for (const std::string& word : line) {
      text += word + '\0';
    }
    return loader_of(text, argv);
  };
  CHECK(loader({"ld.so", "--library-path", "d", "./train", "-x"}, {"./train", "-x"}) ==
        Words{"ld.so", "--library-path", "d"});
  CHECK(loader({"./train", "-x", ""}, {"./train", "-x", ""}).empty());
  CHECK(loader({"./train", "--mine", "-x"}, {"./train", "-x"}).empty());  // the program took some out
  CHECK(loader({"./train"}, {"./train", "-x"}).empty());
  CHECK(loader({}, {"./train"}).empty());
}

TEST_CASE("a wrapper stands before the program's path, its loader and its arguments, for the ranks that it is for") {
  WorkerProgram program;
  program.arguments = {"train", "--epochs=3"};
  CHECK(command_line_of(program, 0).arguments == program.arguments);
  CHECK(command_line_of(program, 0).executable == own_program());
  program.wrapper = {"/usr/bin/env", "A=b"};
  program.wrapped_rank = 1;
  CHECK(command_line_of(program, 0).executable == own_program());
  const CommandLine wrapped = command_line_of(program, 1);
  CHECK(wrapped.executable == "/usr/bin/env");
  CHECK(wrapped.arguments == Words{"/usr/bin/env", "A=b", own_program(), "--epochs=3"});
  program.loader = {"ld.so", "--library-path", "d"};
  CHECK(command_line_of(program, 0).arguments == Words{"ld.so", "--library-path", "d", "train", "--epochs=3"});
  CHECK(command_line_of(program, 1).arguments ==
        Words{"/usr/bin/env", "A=b", own_program(), "--library-path", "d", "train", "--epochs=3"});
}

TEST_CASE("the program of --wrap is found as a shell would find it, and one that is not there is named") {
  CHECK(wrapper_path("sh", {{"PATH", "/nowhere:/bin"}}) == "/bin/sh");
  CHECK(wrapper_path("/bin/sh", {}) == "/bin/sh");
  CHECK(wrapper_path("sh", {}).ends_with("/sh"));
  for (const char* wrong : {"no-such-program", "/no/such/program", "/bin"}) {
    CHECK_ERROR(wrapper_path(wrong, {{"PATH", "/bin"}}), dtrain::Errc::usage, "there is no such program");
  }
}
