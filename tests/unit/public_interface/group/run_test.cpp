#include "unit/public_interface/prelude.hpp"

namespace {

using Alone = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

template <class Body>
int run_alone(Body body) {
  REQUIRE(::setenv("DTRAIN_LAUNCHER", "none", 1) == 0);
  std::string name = "program";
  char* arguments[] = {name.data(), nullptr};
  return dtrain::run<Alone>(1, arguments, body);
}

/// What `call` writes to stderr.
template <class Call>
std::string stderr_of(Call call) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const int saved = ::dup(STDERR_FILENO);
  REQUIRE(::dup2(::fileno(file), STDERR_FILENO) == STDERR_FILENO);
  call();
  REQUIRE(::dup2(saved, STDERR_FILENO) == STDERR_FILENO);
  ::close(saved);
  std::string text(4096, ' ');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("the arguments are an argv: writable, and a null pointer follows the last") {
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&, dtrain::Arguments arguments) {
          char** const argv = arguments.data();
          return arguments.size() == 1 && std::string(argv[0]) == "program" && argv[1] == nullptr ? 0 : 1;
        }) == 0);
}

TEST_CASE("the exit code is the body's, and never one that the system makes a success of") {
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 0; }) == 0);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 7; }) == 7);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return -1; }) == -1);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 256; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return -512; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { return 1LL << 32; }) == dtrain::exit_code_exception);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) {}) == 0);
  CHECK(run_alone([](const dtrain::ProcessGroup<Alone>&) { throw std::runtime_error("on purpose"); }) ==
        dtrain::exit_code_exception);
}

TEST_CASE("a body that returns after its job has failed makes no success of it, and keeps its own failure") {
  const auto fails_and_returns = [](int code) {
    return run_alone([code](const dtrain::ProcessGroup<Alone>& group) {
      dtrain::group::GroupAccess::of(group).rank_context()->report_exception("on purpose");
      return code;
    });
  };
  CHECK(fails_and_returns(0) == dtrain::exit_code_exception);
  CHECK(fails_and_returns(7) == 7);
}

TEST_CASE("the line of an error names its rank once") {
  const auto line_of = [](const char* text) {
    return stderr_of([&] { run_alone([&](const dtrain::ProcessGroup<Alone>&) { throw std::runtime_error(text); }); });
  };
  CHECK(line_of("on purpose") == "dtrain: rank 0: on purpose\n");
  CHECK(line_of("rank 0 on host vm timed out") == "dtrain: rank 0 on host vm timed out\n");
  CHECK(line_of("rank 00 has had enough") == "dtrain: rank 0: rank 00 has had enough\n");
}
