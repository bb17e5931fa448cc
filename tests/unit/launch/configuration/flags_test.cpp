#include "unit/launch/prelude.hpp"

namespace {

Flags parse(const std::vector<const char*>& arguments) {
  return parse_flags(arguments);
}

std::string error_of(const std::vector<const char*>& arguments) {
  try {
    static_cast<void>(parse_flags(arguments));
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::usage));
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every spelling of a flag is taken out, and what is the program's stays in order") {
  for (const std::vector<const char*>& arguments : std::vector<std::vector<const char*>>{
           {"train", "--epochs=3", "--nproc-per-node=4", "data"},
           {"train", "--epochs=3", "--nproc-per-node", "4", "data"},
           {"train", "--nproc_per_node=4", "--epochs=3", "data"},
           {"train", "--epochs=3", "data", "--nproc_per_node", "4"},
           {"train", "--epochs=3", "--nproc-per-node=2", "data", "--nproc-per-node=4"},
       }) {
    const Flags flags = parse(arguments);
    CHECK(flags.node.nproc_per_node == "4");
    CHECK(flags.program == std::vector<std::string>{"train", "--epochs=3", "data"});
    CHECK(!flags.help);
  }
}

TEST_CASE("all flags arrive where they belong") {
  const Flags flags =
      parse({"train", "--nnodes=2", "--node_rank=1", "--master-addr", "h0", "--master-port=99", "--log-dir=logs",
             "--max-restarts=3", "--help-launch", "--wrap=gdb -ex 'info args' --", "--wrap_rank", "3"});
  CHECK(flags.node.node_count == "2");
  CHECK(flags.node.node_rank == "1");
  CHECK(flags.node.master_addr == "h0");
  CHECK(flags.node.master_port == "99");
  CHECK(flags.log_dir == "logs");
  CHECK(flags.max_restarts == 3);
  CHECK(flags.wrapper == std::vector<std::string>{"gdb", "-ex", "info args", "--"});
  CHECK(flags.wrapped_rank == 3);
  CHECK(!flags.in_process);
  CHECK(flags.help);
  CHECK(flags.program == std::vector<std::string>{"train"});
}

TEST_CASE("--status asks each job of the host or that of a process, and no name is taken for a misspelled --status") {
  Flags flags = parse({"train", "--status", "4711"});
  CHECK(flags.status);
  CHECK_FALSE(flags.status_process);
  CHECK(flags.program == std::vector<std::string>{"train", "4711"});
  flags = parse({"train", "--status=4711"});
  CHECK(flags.status_process == 4711);
  CHECK_CONTAINS(error_of({"train", "--status=all"}), "--status='all' is not a number");
  flags = parse({"train", "--stats", "--state=3", "--", "--status"});
  CHECK_FALSE(flags.status);
  CHECK(flags.program == std::vector<std::string>{"train", "--stats", "--state=3", "--status"});
}

TEST_CASE("everything after the first -- is the program's, which does not see it") {
  const Flags flags = parse({"train", "a", "--", "--nnodes=3", "--nproc-per-nod=1", "--"});
  CHECK(!flags.node.node_count);
  CHECK(flags.program == std::vector<std::string>{"train", "a", "--nnodes=3", "--nproc-per-nod=1", "--"});
}

TEST_CASE("a flag within two letters of one is an error with the suggestion, any other is the program's") {
  CHECK_CONTAINS(error_of({"train", "--nprocs-per-node=4"}), "did you mean --nproc-per-node?");
  CHECK_CONTAINS(error_of({"train", "--nprocs=2"}), "did you mean --nproc-per-node?");
  CHECK_CONTAINS(error_of({"train", "--nproc=2"}), "did you mean --nproc-per-node?");
  CHECK_CONTAINS(error_of({"train", "--nnode", "2"}), "did you mean --nnodes?");
  CHECK_CONTAINS(error_of({"train", "--lgo-dir=x"}), "did you mean --log-dir?");
  CHECK_CONTAINS(error_of({"train", "--master_adr=x"}), "did you mean --master-addr?");
  CHECK_CONTAINS(error_of({"train", "--wrapp=x"}), "did you mean --wrap?");
  CHECK_CONTAINS(error_of({"train", "--wrap-ranks=1"}), "did you mean --wrap-rank?");
  CHECK_CONTAINS(error_of({"train", "--bnd=core"}), "did you mean --bind?");
  CHECK_CONTAINS(error_of({"train", "--bind=cores"}), "none of auto, core, numa and none");
  CHECK_CONTAINS(error_of({"train", "--inprocess"}), "did you mean --in-process?");
  for (const char* own : {"--map=x", "--drop", "--find=x", "--kind", "--epochs", "--nodes-of-tree", "--log", "--seed=1",
                          "-n", "--", "--x=--nproc-per-nod"}) {
    CHECK(error_of({"train", own}) == "");
  }
  CHECK(error_of({"--nproc-per-nod"}) == "");  // the program's name
}

TEST_CASE("a flag without a value, or with one that cannot be, is an error that says what to give") {
  CHECK_CONTAINS(error_of({"train", "--nproc-per-node"}), "--nproc-per-node=VALUE");
  CHECK_CONTAINS(error_of({"train", "--nproc-per-node="}), "no value");
  CHECK_CONTAINS(error_of({"train", "--log-dir", "--epochs=3"}), "no value");
  for (const char* wrong : {"--max-restarts=-1", "--max-restarts=many", "--max-restarts=10001"}) {
    CHECK_CONTAINS(error_of({"train", wrong}), "is not a number from 0 to 10000");
  }
}

TEST_CASE("--wrap is a command, and --wrap-rank a rank of it") {
  CHECK_CONTAINS(error_of({"train", "--wrap", "sh -c 'x"}), "a quote in it has no end");
  CHECK_CONTAINS(error_of({"train", "--wrap", "  "}), "it has no word");
  CHECK_CONTAINS(error_of({"train", "--wrap=env", "--wrap-rank=one"}), "--wrap-rank='one' is not a number");
  CHECK_CONTAINS(error_of({"train", "--wrap-rank=1"}), "add --wrap='COMMAND'");
}

TEST_CASE("--in-process is for one rank without a launcher: what only a launcher can do beside it is an error") {
  CHECK(parse({"train", "--in-process", "--epochs=3"}).in_process);
  CHECK(parse({"train", "--in-process", "--epochs=3"}).program == std::vector<std::string>{"train", "--epochs=3"});
  CHECK(parse({"train", "--nproc-per-node=1", "--in_process", "--nnodes=1"}).in_process);
  for (const std::string other :
       {"--nproc-per-node=2", "--nnodes=2", "--log-dir=d", "--max-restarts=1", "--wrap=env"}) {
    CAPTURE(other);
    CHECK_CONTAINS(error_of({"train", "--in-process", other.c_str()}),
                   "leave out " + other.substr(0, other.find('=')) + ", or --in-process");
  }
}

TEST_CASE("the page of flags begins with a usage line and an example, and has every flag in one of four groups") {
  const std::string page = help_text("./bin/train");
  CHECK(page.find("Usage: ./bin/train [launcher flags] [your flags]\n"
                  "Example: ./bin/train --nproc-per-node=4 --epochs=3\n") == 0);
  std::size_t last = 0;
  for (const std::string group : {"One node", "Several nodes", "Failures and elastic jobs", "Debugging"}) {
    const std::size_t at = page.find("\n\n" + group);
    REQUIRE(at != page.npos);
    CHECK(at > last);
    last = at;
  }
  for (const auto& flag : dtrain::launch::detail::flag_names)
    CHECK_CONTAINS(page, "\n  " + std::string(flag));
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    CHECK(line.size() <= 110);
  CHECK_CONTAINS(help_text("a\x1b[2J"), "Usage: a\\x1b[2J [launcher flags]");
  CHECK_CONTAINS(help_text(""), "Example: PROGRAM --nproc-per-node=4");
}

TEST_CASE("a program without a launcher of its own refuses that launcher's flags, in any spelling, but not after --") {
  using dtrain::launch::refuse_launcher_flags;
  for (const char* flag :
       {"--nproc-per-node=4", "--nproc_per_node", "--nnodes=2", "--max_restarts=1", "--in-process", "--wrap_rank=0"}) {
    CHECK_THROWS_WITH_AS(refuse_launcher_flags({"train", "--epochs=3", flag}), doctest::Contains("launch::PerNode"),
                         dtrain::Error);
    CHECK_NOTHROW(refuse_launcher_flags({"train", "--", flag}));
  }
  CHECK_NOTHROW(refuse_launcher_flags({"--nnodes=2", "--log-dir=d", "--master-addr=h", "--local_rank=1"}));
}
