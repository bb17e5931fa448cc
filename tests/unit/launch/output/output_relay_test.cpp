#include "unit/launch/prelude.hpp"

using dtrain::async::EventLoop;
using dtrain::async::Task;
using dtrain::async::TaskHandle;

namespace {

void set_non_blocking(int descriptor) {
  REQUIRE(::fcntl(descriptor, F_SETFL, O_NONBLOCK) == 0);
}

void run_for(EventLoop& loop, milliseconds time) {
  const auto sleep = [](EventLoop& home, milliseconds duration) -> Task<void> { co_await home.sleep_for(duration); };
  loop.run_until(sleep(loop, time), Deadline::after(std::chrono::seconds(60)));
}

std::string read_all(int descriptor) {
  std::string text;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::read(descriptor, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

/// A worker's pipe, whose lines are shown with the prefix of a rank.
struct Relayed {
  Relayed(int rank, bool shows_parts) : relay(loop, std::move(worker.reader), console, rank, shows_parts, {}) {
    set_non_blocking(shown.reader.get());
  }

  EventLoop loop;
  Pipe worker = make_pipe();
  Pipe shown = make_pipe();
  Console console{loop, shown.writer.get(), false};
  const TaskHandle writing = loop.spawn(console.write_out());
  OutputRelay relay;
  const TaskHandle relaying = loop.spawn(relay.run());
};

struct LineRelay : Relayed {
  LineRelay() : Relayed(3, false) {}
};

/// It shows also the part of a line that has no end yet.
struct PartRelay : Relayed {
  PartRelay() : Relayed(0, true) {}
};

}  // namespace

TEST_CASE_FIXTURE(LineRelay, "lines come out whole, prefixed, the last one with an end") {
  REQUIRE(::write(worker.writer.get(), "one\ntw", 6) == 6);
  run_for(loop, milliseconds(20));
  CHECK(read_all(shown.reader.get()) == "[3] one\n");
  CHECK(relay.is_drained());
  REQUIRE(::write(worker.writer.get(), "o\nend", 5) == 5);
  worker.writer.reset();
  run_for(loop, milliseconds(20));
  CHECK(relaying.done());
  CHECK(read_all(shown.reader.get()) == "[3] two\n[3] end\n");
  CHECK(relay.tail().lines().back() == "end");
}

TEST_CASE_FIXTURE(PartRelay,
                  "a part of a line is shown without its end, and its rest follows unless others print first") {
  std::string text;
  const auto after = [&](const std::string& bytes, const std::string& wanted) {
    REQUIRE(::write(worker.writer.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    text.clear();
    const Deadline deadline = support::soon();
    while (text.size() < wanted.size() && !deadline.passed()) {
      run_for(loop, milliseconds(2));
      text += read_all(shown.reader.get());
    }
    return text;
  };
  CHECK(after("done\nName? ", "[0] done\n[0] Name? ") == "[0] done\n[0] Name? ");
  CHECK(after("it is", "it is") == "it is");
  CHECK(after(" x\n", " x\n") == " x\n");
  CHECK(after("loading", "[0] loading") == "[0] loading");
  console.line("[1] ", "other");
  CHECK(after(" ... ", "\n[1] other\n[0]  ... ") == "\n[1] other\n[0]  ... ");
  console.line("[1] ", "other");
  CHECK(after("\nnext\n", "\n[1] other\n[0] next\n") == "\n[1] other\n[0] next\n");
  CHECK(after("50%", "[0] 50%") == "[0] 50%");
  CHECK(after("\r100%\r\n", "\r[0] 100%\r\n") == "\r[0] 100%\r\n");
  CHECK(relay.tail().lines() == std::vector<std::string>{"done", "Name? it is x", "loading ... ", "next", "100%"});
}

TEST_CASE_FIXTURE(PartRelay, "a progress bar is shown while it is drawn, each time behind the rank's prefix") {
  std::string text;
  std::string drawn;
  const Deadline deadline = support::soon();
  for (int step = 0; text.empty() && !deadline.passed(); ++step) {  // it never pauses for 100 ms
    const std::string bar = "\rstep " + std::to_string(step);
    drawn += "\r[0] step " + std::to_string(step);
    REQUIRE(::write(worker.writer.get(), bar.data(), bar.size()) == static_cast<ssize_t>(bar.size()));
    run_for(loop, milliseconds(5));
    text += read_all(shown.reader.get());
  }
  REQUIRE(::write(worker.writer.get(), "\n", 1) == 1);
  worker.writer.reset();
  while (!relaying.done() && !deadline.passed()) {
    run_for(loop, milliseconds(2));
  }
  CHECK(text.find("\n") == text.npos);
  while (!text.ends_with("\n") && !deadline.passed()) {
    run_for(loop, milliseconds(2));
    text += read_all(shown.reader.get());
  }
  CHECK(text == "[0] " + drawn + "\n");
}

TEST_CASE_FIXTURE(PartRelay, "a console that takes nothing makes the worker wait, and then nothing is lost") {
  set_non_blocking(worker.writer.get());
  const std::string line = std::string(99, 'x') + "\n";
  std::size_t accepted = 0;
  const auto fill = [&] {
    while (::write(worker.writer.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
      ++accepted;
    }
  };
  for (int i = 0; i < 40; ++i) {
    fill();
    run_for(loop, milliseconds(2));
  }
  const std::size_t full = accepted;
  CHECK(full * line.size() < 2000000);  // two pipes and the bound of the console
  fill();
  run_for(loop, milliseconds(20));
  fill();
  CHECK(accepted == full);
  worker.writer.reset();
  std::string text;
  for (int i = 0; i < 2000 && text.size() < full * (line.size() + 4); ++i) {
    text += read_all(shown.reader.get());
    run_for(loop, milliseconds(1));
  }
  CHECK(text.size() == full * (line.size() + 4));
}

TEST_CASE("a console whose reader is gone takes nothing more and holds nobody up") {
  EventLoop loop;
  REQUIRE((::signal(SIGPIPE, SIG_IGN) != SIG_ERR));
  Pipe shown = make_pipe();
  Console console(loop, shown.writer.get(), false);
  const TaskHandle writing = loop.spawn(console.write_out());
  std::vector<int> reasons;
  console.on_broken([&reasons](int error) { reasons.push_back(error); });
  shown.reader.reset();
  for (int i = 0; i < 10000; ++i) {
    console.line("[0] ", std::string(100, 'x'));
    if (i == 0) {
      run_for(loop, milliseconds(5));
    }
  }
  CHECK(console.broken());
  CHECK(reasons == std::vector<int>{EPIPE});
  CHECK(console.empty());
  const auto wait = [](Console& full, bool& in_time) -> Task<void> {
    const auto ready = co_await full.room(Deadline::after(milliseconds(500)));
    in_time = ready == dtrain::async::WakeReason::ready;
  };
  bool in_time = false;
  loop.run_until(wait(console, in_time), Deadline::after(std::chrono::seconds(60)));
  CHECK(in_time);
}

TEST_CASE("a regular file is written like anything else") {
  EventLoop loop;
  char path[] = "/tmp/dtrain-console-XXXXXX";
  const dtrain::Descriptor file(::mkostemp(path, O_CLOEXEC));
  REQUIRE(file);
  Console console(loop, file.get(), false);
  const TaskHandle writing = loop.spawn(console.write_out());
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    console.line("[0] ", std::to_string(i));
    expected += "[0] " + std::to_string(i) + "\n";
  }
  run_for(loop, milliseconds(50));
  REQUIRE(::lseek(file.get(), 0, SEEK_SET) == 0);
  CHECK(read_all(file.get()) == expected);
  REQUIRE(::unlink(path) == 0);
}

TEST_CASE("on a terminal a line goes above the live one, which is drawn again") {
  EventLoop loop;
  Pipe shown = make_pipe();
  set_non_blocking(shown.reader.get());
  Console console(loop, shown.writer.get(), true);
  const TaskHandle writing = loop.spawn(console.write_out());
  console.live_line("[0] 10%");
  console.line("[1] ", "hello");
  console.live_line("[0] 20%");
  console.live_line("");
  console.line("[0] ", "\r10%\r100%");
  run_for(loop, milliseconds(20));
  CHECK(read_all(shown.reader.get()) == "[0] 10%\r\x1b[K[1] hello\n[0] 10%\r\x1b[K[0] 20%\r\x1b[K[0] 100%\n");
}
