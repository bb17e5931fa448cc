#include "unit/launch/prelude.hpp"

using dtrain::Descriptor;

namespace {

SpawnRequest shell(const std::string& script, int input, int output) {
  SpawnRequest request;
  request.executable = "/bin/sh";
  request.arguments = {"sh", "-c", script};
  request.environment = {{"GREETING", "hello"}};
  request.standard_input = input;
  request.standard_output = output;
  request.standard_error = output;
  sigemptyset(&request.signal_mask);
  return request;
}

ExitStatus end_of(pid_t process) {
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED) == 0);
  return ExitStatus::of(info);
}

}  // namespace

TEST_CASE("a spawned program has its arguments, environment, descriptors and a group of its own") {
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe output = make_pipe();
  const pid_t process =
      spawn(shell("echo $GREETING $HOME; ps -o pgid= -p $$ 2>/dev/null; exit 7", nothing.get(), output.writer.get()));
  CHECK(::getpgid(process) == process);
  output.writer.reset();
  CHECK(end_of(process) == ExitStatus{7, 0});
  char bytes[64];
  const ssize_t count = ::read(output.reader.get(), bytes, sizeof bytes);
  REQUIRE(count >= 6);
  CHECK(std::string(bytes, 6) == "hello\n");
}

TEST_CASE("a program that has this process's standard input keeps it, though exec was to close it here") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int before = ::fcntl(STDIN_FILENO, F_GETFD);
  REQUIRE(before >= 0);
  REQUIRE(::fcntl(STDIN_FILENO, F_SETFD, FD_CLOEXEC) == 0);
  CHECK(end_of(spawn(shell("test -e /proc/$$/fd/0", STDIN_FILENO, nothing.get()))) == ExitStatus{0, 0});
  CHECK(::fcntl(STDIN_FILENO, F_GETFD) == FD_CLOEXEC);
  REQUIRE(::fcntl(STDIN_FILENO, F_SETFD, before) == 0);
}

TEST_CASE("a spawned program has a further descriptor by the same number, and no other one") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Pipe pipe = make_pipe();
  const auto has_file = [](const Descriptor& descriptor) {
    return "test -e /proc/$$/fd/" + std::to_string(descriptor.get());
  };
  SpawnRequest request = shell(has_file(pipe.writer) + " && ! " + has_file(pipe.reader), nothing.get(), nothing.get());
  request.inherited = pipe.writer.get();
  CHECK(end_of(spawn(request)) == ExitStatus{0, 0});
  CHECK(::fcntl(pipe.writer.get(), F_GETFD) == FD_CLOEXEC);
}

TEST_CASE("a program that cannot be executed is an error that says why, and leaves no child") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  SpawnRequest request = shell("", nothing.get(), nothing.get());
  request.executable = "/no/such/program";
  CHECK_THROWS_WITH_AS(static_cast<void>(spawn(request)), "starting /no/such/program: No such file or directory",
                       dtrain::Error);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("a spawned program has the mask that it is given, and no handler of this process") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  struct sigaction handled {};
  struct sigaction before {};
  handled.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR2, &handled, &before) == 0);
  SpawnRequest request = shell("kill -USR2 $$; exit 1", nothing.get(), nothing.get());
  CHECK(end_of(spawn(request)) == ExitStatus{0, SIGUSR2});
  sigaddset(&request.signal_mask, SIGUSR2);
  CHECK(end_of(spawn(request)) == ExitStatus{1, 0});
  sigset_t now;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &now) == 0);
  CHECK(sigismember(&now, SIGUSR2) == 0);
  REQUIRE(::sigaction(SIGUSR2, &before, nullptr) == 0);
}

TEST_CASE("a start that the system refuses names the system call") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  SpawnRequest request = shell("", nothing.get(), nothing.get());
  request.standard_output = 1 << 30;  // no descriptor has this number
  CHECK_THROWS_WITH_AS(static_cast<void>(spawn(request)), "starting /bin/sh: dup2: Bad file descriptor", dtrain::Error);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("a process that joins a job with its standard descriptors closed gets /dev/null in their place") {
  const pid_t process = ::fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    for (int descriptor = 0; descriptor <= 2; ++descriptor) {
      ::close(descriptor);
    }
    dtrain::launch::JoinOptions options;
    options.identity.emplace();
    static_cast<void>(dtrain::launch::rank_process_of(std::move(options)));
    int open = 0;
    for (int descriptor = 0; descriptor <= 2; ++descriptor) {
      open += ::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
    }
    ::_exit(open);
  }
  CHECK(end_of(process) == ExitStatus{3, 0});
  CHECK(::waitpid(process, nullptr, WNOHANG) < 0);
}

TEST_CASE("the end of a signalled process names the signal") {
  const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const pid_t process = spawn(shell("kill -9 $$", nothing.get(), nothing.get()));
  CHECK(end_of(process) == ExitStatus{0, SIGKILL});
}

TEST_CASE("a program has the limit of open files that its launcher had, however many the launcher may open now") {
  const std::string text = support::with_open_files(100, 200, [] {
    dtrain::raise_open_files();
    Pipe output = make_pipe();
    const pid_t process = spawn(shell("ulimit -Sn; ulimit -Hn", output.writer.get(), output.writer.get()));
    output.writer.reset();
    std::string seen = std::to_string(*dtrain::open_files_limit()) + " ";
    char byte = 0;
    while (::read(output.reader.get(), &byte, 1) == 1) {
      seen += byte;
    }
    return end_of(process) == ExitStatus{} ? seen : seen + " failed";
  });
  CHECK(text == "200 100\n200\n");
}
