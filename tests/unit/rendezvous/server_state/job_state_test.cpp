#include "unit/rendezvous/prelude.hpp"

namespace {

/// A job whose ranks are the sessions 100, 101, ...
struct Table {
  explicit Table(int world_size, Limits limits = {})
      : job(sink, world_size, "the launcher on host l", "job-id", limits) {}
  Table(int world_size, const std::string& owner, const std::string& name, const StoreOpener& opener)
      : job(sink, world_size, owner, "job-id", {}, name, opener) {}

  void join(SessionId session, int rank, int world_size, const std::string& host = "a",
            const std::string& settings = {}) {
    Join join;
    join.info.rank = rank;
    join.info.host_id = host;
    join.info.host = host;
    join.info.settings = settings;
    join.world_size = world_size;
    join.process = 7;
    this->join(session, join);
  }

  void join(SessionId session, const Join& join) {
    const auto result = job.join(session, join);
    const std::string who = std::to_string(session) + " ";
    if (const auto* refused = std::get_if<Refused>(&result)) {
      answers.push_back(who + "refused: " + refused->sentence);
    } else if (const auto* failure = std::get_if<Failure>(&result)) {
      answers.push_back(who + "failure: " + failure->cause.sentence());
    } else {
      answers.push_back(who + "accepted");
    }
  }

  void form() {
    const int size = job.rank_table().world_size();
    for (int rank = 0; rank < size; ++rank) {
      join(100 + static_cast<SessionId>(rank), rank, size);
    }
    seen();
  }

  void ask(SessionId session, std::uint64_t id, RequestKind operation, std::vector<std::string> keys,
           std::string value = {}, std::int64_t number = 0) {
    job.receive(session, Request{id, operation, std::move(keys), std::move(value), number});
  }

  /// The answers to join, and what the sink recorded, since the last call, each as one line.
  std::vector<std::string> seen() {
    std::vector<std::string> lines = std::exchange(answers, {});
    for (const RecordingSink::Event& event : sink.take()) {
      const auto* message = std::get_if<RecordingSink::Message>(&event);
      lines.push_back(message == nullptr
                          ? std::get<std::string>(event)
                          : std::to_string(message->session) + " " +
                                std::visit([](const auto& each) { return text(each); }, message->content));
    }
    return lines;
  }

  static std::string text(const ToRank& message) {
    if (const auto* welcome = std::get_if<Welcome>(&message)) {
      return "welcome " + std::to_string(welcome->membership.rank) + " " + welcome->membership.job;
    }
    if (const auto* failure = std::get_if<Failure>(&message)) {
      return "failure: " + failure->cause.sentence();
    }
    if (const auto* response = std::get_if<Response>(&message)) {
      return "answer " + std::to_string(response->id) + " " + std::to_string(static_cast<int>(response->status)) + " " +
             response->text + (response->number != 0 ? std::to_string(response->number) : "");
    }
    return "left";
  }
  static std::string text(const ValueResponse& response) {
    return text(Response{response.id, response.status, response.text ? *response.text : "", response.number});
  }

  RecordingSink sink;
  JobState job;
  std::vector<std::string> answers;
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("all are welcomed when the last one joins, with one message each") {
  Table table(2);
  table.join(7, 1, 2, "b");
  CHECK(table.seen() == Lines{"7 accepted", "joined 1 b"});
  CHECK_FALSE(table.job.formed());
  table.join(8, 0, 2, "a");
  CHECK(table.seen() == Lines{"8 accepted", "joined 0 a", "8 welcome 0 job-id", "7 welcome 1 job-id"});
  CHECK(table.job.formed());
}

TEST_CASE("a rank out of range or taken is refused alone, by name") {
  Table table(2);
  table.join(7, 1, 2, "b");
  table.seen();
  table.join(8, 1, 2, "c");
  CHECK(
      table.seen() ==
      Lines{"8 refused: rank 1 is taken: rank 1 on host b (process 7) has it, a process of another host, and was heard "
            "of 0.0 s ago; give each process its own rank, or, if this process was started in that one's place (a "
            "restarted pod), start the job again once that one is lost, after DTRAIN_LIVENESS_SECONDS of silence"});
  table.join(9, 2, 2);
  CHECK(table.seen() == Lines{"9 refused: rank 2 is out of range in a world of 2 ranks (0 to 1); correct the rank of "
                              "this process"});
  table.join(10, -1, 2);
  CHECK_CONTAINS(table.seen().front(), "rank -1 is out of range");
  CHECK_FALSE(table.job.cause());
  table.job.on_join_timeout("5.0 s");
  CHECK(table.seen().front().find("failed: the job timed out: within 5.0 s only rank 1 of 2 joined, rank 0 did not") ==
        0);
  CHECK_CONTAINS(table.job.cause()->text, "(a process was refused: rank -1 is out");
}

TEST_CASE("another world size fails the whole job, and the sentence has both") {
  Table table(2);
  table.join(7, 0, 2);
  table.seen();
  table.join(8, 1, 3, "b");
  const std::string sentence =
      "ranks disagree: rank 1 on host b says that the world has 3 ranks, the launcher on host l that it has 2; start "
      "all ranks with one world size";
  CHECK(table.seen() == Lines{"8 failure: " + sentence, "failed: " + sentence, "7 failure: " + sentence});
  table.join(9, 1, 2);
  CHECK(table.seen() == Lines{"9 failure: " + sentence});
}

TEST_CASE("ranks that do not agree on a term fail the whole job, which names both and the first difference") {
  Table table(3);
  table.join(7, 2, 3, "a", "backend=SharedMemory\ntopology=Flat\n");
  table.join(8, 1, 3, "b", "backend=SharedMemory\ntopology=Flat\n");
  table.seen();
  table.join(9, 0, 3, "c", "backend=Gloo\ntopology=Ring\n");
  CHECK(table.seen().front() ==
        "9 failure: ranks disagree: rank 0 on host c has backend=Gloo, rank 2 on host a has backend=SharedMemory; "
        "start all ranks with the same program and settings");
  CHECK(table.job.cause());
}

TEST_CASE("a rank of another job that comes when all have joined is refused alone") {
  Table table(2);
  table.form();
  table.join(9, 3, 4, "b");
  CHECK(table.seen() == Lines{"9 refused: rank 3 on host b says that the world has 4 ranks, the launcher on host l "
                              "that it has 2, and all of them have joined; give each job a port of its own "
                              "(MASTER_PORT)"});
  CHECK(!table.job.cause());
}

TEST_CASE("a wrong local rank fails the whole job") {
  Table table(1);
  Join join;
  join.info.host = join.info.host_id = "a";
  join.info.local_rank = 1;
  table.join(7, join);
  const Lines lines = table.seen();
  REQUIRE(lines.size() == 4);
  CHECK(lines[2].find("failed: ranks disagree: rank 0 on host a was given local_rank 1") == 0);
  CHECK(lines[3].find("7 failure: ") == 0);
}

TEST_CASE("requests are answered, those that wait when they can be") {
  Table table(2);
  table.form();
  table.ask(100, 1, RequestKind::get, {"k"});
  table.ask(100, 2, RequestKind::wait, {"k", "n"});
  table.ask(100, 3, RequestKind::try_get, {"k"});
  CHECK(table.seen() == Lines{"100 answer 3 2 "});
  table.ask(101, 1, RequestKind::set, {"k"}, "v");
  CHECK(table.seen() == Lines{"101 answer 1 1 ", "100 answer 1 1 v"});
  table.ask(101, 2, RequestKind::add, {"n"}, "", 5);
  CHECK(table.seen() == Lines{"101 answer 2 1 5", "100 answer 2 1 "});
  table.ask(101, 3, RequestKind::add, {"k"}, "", 5);
  CHECK(table.seen().front().find(
            "101 answer 3 3 it holds no integer; add works on a value that is a decimal number") == 0);
}

TEST_CASE("a barrier answers all at once, round after round") {
  Table table(2);
  table.form();
  for (std::uint64_t round = 1; round < 4; ++round) {
    table.ask(100, round, RequestKind::barrier, {"b"});
    table.ask(100, 100 + round, RequestKind::barrier, {"b"});
    const std::string id = std::to_string(round);
    CHECK(table.seen() == Lines{"100 answer 10" + id +
                                " 3 this rank waits in it already; one thread of a rank passes "
                                "it at a time"});
    table.ask(101, round, RequestKind::barrier, {"b"});
    CHECK(table.seen() == Lines{"100 answer " + id + " 1 ", "101 answer " + id + " 1 "});
  }
}

TEST_CASE("who takes a request back receives what was missing; a finished one has its answer already") {
  Table table(3);
  table.form();
  table.ask(100, 1, RequestKind::wait, {"a", "b"});
  table.ask(100, 2, RequestKind::barrier, {"x"});
  table.ask(102, 1, RequestKind::barrier, {"x"});
  table.job.receive(100, Cancel{1});
  table.job.receive(100, Cancel{2});
  table.job.receive(100, Cancel{1});
  table.job.receive(100, Cancel{77});
  const Lines lines = table.seen();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].find("100 answer 1 4 no rank set 'a', 'b' (2 of 2 keys) in the ") == 0);
  CHECK(lines[1].find("100 answer 2 4 2 of 3 ranks wait in it (ranks 0 and 2, the first came ") == 0);
}

TEST_CASE("a rank that leaves is gone without a failure, and barriers say that they cannot complete") {
  Table table(2);
  table.form();
  table.ask(100, 1, RequestKind::barrier, {"x"});
  table.job.receive(101, Leave{});
  CHECK(table.seen() ==
        Lines{"101 left", "101 close", "left 1", "100 answer 1 3 it cannot complete: rank 1 left the job"});
  CHECK_FALSE(table.job.session_ended(101, "closed"));
  CHECK_FALSE(table.job.over());
  table.ask(100, 2, RequestKind::barrier, {"x"});
  CHECK(table.seen() == Lines{"100 answer 2 3 it cannot complete: rank 1 left the job"});
  table.job.receive(100, Leave{});
  CHECK(table.job.over());
  CHECK_FALSE(table.job.cause());
}

TEST_CASE("a connection that closes without leave is a loss that says what the rank was doing") {
  Table table(4);
  table.form();
  table.ask(100, 1, RequestKind::barrier, {"x"});
  table.ask(101, 1, RequestKind::get, {"k"});
  CHECK(table.job.session_ended(100, "it closed")->sentence() ==
        "rank 0 on host a was lost: it closed while it waited in barrier 'x'");
  CHECK(table.job.session_ended(101, "it closed")->text == "it closed while it waited for key 'k'");
  CHECK(table.job.session_ended(102, "it closed")->text == "it closed while it worked");
  CHECK_FALSE(table.job.session_ended(102, "again"));
  Table early(2);
  early.join(7, 1, 2);
  CHECK(early.job.session_ended(7, "it closed")->text == "it closed while the ranks were joining");
}

TEST_CASE("the first cause goes to all, and answers every later request") {
  Table table(2);
  table.form();
  table.ask(100, 1, RequestKind::get, {"k"});
  table.job.receive(101, FailureReport{Cause{CauseKind::exception, 1, "a", "first"}});
  table.job.receive(100, FailureReport{Cause{CauseKind::exception, 0, "a", "second"}});
  table.job.post(Cause{CauseKind::stopped, -1, "", "third"});
  const std::string sentence = "rank 1 on host a failed: first";
  CHECK(table.seen() == Lines{"failed: " + sentence, "100 failure: " + sentence, "101 failure: " + sentence});
  table.ask(101, 1, RequestKind::set, {"k"}, "v");
  CHECK(table.seen() == Lines{"101 answer 1 5 " + sentence});
  CHECK(table.job.keys().waits() == 0);
  table.job.receive(100, Leave{});
  CHECK_FALSE(table.job.over());
  table.job.session_ended(101, "closed");
  CHECK(table.job.over());
}

TEST_CASE("what a session may ask at once is bounded") {
  Limits limits;
  limits.pending_requests = 2;
  limits.waited_keys = 3;
  Table table(2, limits);
  table.form();
  table.ask(100, 1, RequestKind::wait, {"a", "b"});
  table.ask(100, 2, RequestKind::wait, {"a", "c"});
  CHECK(table.seen().front().find("100 answer 2 3 this rank would wait for more than 3 keys") == 0);
  table.ask(100, 3, RequestKind::get, {"a"});
  table.ask(100, 4, RequestKind::try_get, {"a"});
  CHECK(table.seen().front().find("100 answer 4 3 this rank has 2 requests without an answer") == 0);
  table.ask(101, 1, RequestKind::set, {"a"}, "v");
  CHECK(table.seen() == Lines{"101 answer 1 1 ", "100 answer 3 1 v"});
}

TEST_CASE("a request before all have joined is refused, and leaving then fails the job") {
  Table table(2);
  table.join(7, 1, 2, "b");
  table.seen();
  table.ask(7, 1, RequestKind::set, {"a"}, "v");
  CHECK(table.seen() == Lines{"7 answer 1 3 not all ranks have joined yet"});
  table.job.receive(7, Leave{});
  CHECK(table.seen().back() == "failed: rank 1 on host b was lost: it left before all ranks had joined");
}

namespace {

/// A job of PerProcess: rank 0, process 7 on host "a", opened its store.
struct OpenedTable : Table {
  explicit OpenedTable(int world_size, const std::string& name = {})
      : Table(world_size, "rank 0 on host a", name, opener()) {}

  static StoreOpener opener() { return {7, "a", origin(70)}; }

  static Origin origin(std::int64_t starter) {
    Origin made;
    made.process_space = 1;
    made.starter = starter;
    made.starter_name = "bash";
    made.program = "train";
    made.build = "build id ab";
    return made;
  }

  static Join request(int rank, std::int64_t process, std::int64_t starter = 70) {
    Join join;
    join.info.rank = rank;
    join.info.host_id = join.info.host = "a";
    join.world_size = 3;
    join.process = process;
    join.origin = origin(starter);
    join.opens_store = rank == 0;
    return join;
  }
};

}  // namespace

TEST_CASE("a seat that is claimed twice while the job forms ends it on all ranks, with both processes") {
  OpenedTable table(3);
  table.Table::join(100, OpenedTable::request(0, 7));
  table.Table::join(101, OpenedTable::request(1, 8));
  table.seen();
  table.Table::join(102, OpenedTable::request(1, 9));
  const std::string cause =
      "ranks disagree: rank 1 on host a (process 9) claims a place that rank 1 on host a (process 8) has, while the "
      "job forms: two jobs use one port, or a rank was given twice; give each job a port (MASTER_PORT), a "
      "DTRAIN_JOB_ID or a DTRAIN_SECRET of its own, and each process its own rank";
  CHECK(table.seen() ==
        Lines{"102 failure: " + cause, "failed: " + cause, "100 failure: " + cause, "101 failure: " + cause});
}

TEST_CASE("another rank 0 that finds the port held ends a job that forms, and none that has formed") {
  OpenedTable table(3);
  table.Table::join(101, OpenedTable::request(1, 8));
  table.seen();
  table.Table::join(102, OpenedTable::request(0, 9));  // before the store's own rank 0 has joined
  const Lines lines = table.seen();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("102 failure: ranks disagree: rank 0 on host a (process 9) claims a place that rank 0 on host a "
                      "(process 7) has, while the job forms") == 0);
  CHECK(lines[2].find("101 failure: ") == 0);

  OpenedTable formed(3);
  for (int rank = 0; rank < 3; ++rank) {
    formed.Table::join(100 + static_cast<SessionId>(rank), OpenedTable::request(rank, 7 + rank));
  }
  formed.seen();
  formed.Table::join(103, OpenedTable::request(0, 19));
  CHECK(formed.seen() == Lines{"103 refused: rank 0 on host a (process 7) has opened this store, for another job; give "
                               "each job a port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own"});
  CHECK_FALSE(formed.job.cause());
}

TEST_CASE("another rank 0 of another world size is refused alone") {
  OpenedTable table(3);
  Join other = OpenedTable::request(0, 9);
  other.world_size = 2;
  table.Table::join(102, other);
  CHECK(table.seen().front().find("102 refused: rank 0 on host a (process 7) has opened this store, for another job") ==
        0);
  CHECK_FALSE(table.job.cause());
}

TEST_CASE("another name is refused before anything else, also where the job has failed") {
  OpenedTable table(3, "monday");
  table.job.post(Cause{CauseKind::exception, 0, "a", "it broke"});
  table.seen();
  Join other = OpenedTable::request(1, 8);
  other.job = "tuesday";
  table.Table::join(101, other);
  CHECK(
      table.seen() ==
      Lines{"101 refused: rank 1 on host a (process 8) belongs to the job 'tuesday', and this is the store of "
            "'monday', which rank 0 on host a (process 7) opened; give each job a port (MASTER_PORT), a DTRAIN_JOB_ID "
            "or a DTRAIN_SECRET of its own"});
}

TEST_CASE("ranks by hand from two terminals join with one warning for the job, which names both") {
  OpenedTable table(3);
  table.Table::join(100, OpenedTable::request(0, 7));
  table.seen();
  table.Table::join(101, OpenedTable::request(1, 8, 80));
  const Lines first = table.seen();
  REQUIRE(first.size() == 3);
  CHECK(first[0] == "101 accepted");
  CHECK(first[1].find("doubt: rank 1 on host a (process 8) was started by process 80 (bash), and rank 0 on host a "
                      "(process 7) by process 70 (bash); where they are of two jobs") == 0);
  table.Table::join(102, OpenedTable::request(2, 9, 90));
  for (const std::string& line : table.seen()) {
    CHECK(line.find("doubt") == std::string::npos);
  }
  CHECK(table.job.formed());
}

TEST_CASE("ranks of a host that the opener does not share are compared with each other") {
  OpenedTable table(3);
  for (const auto& [rank, starter] : {std::pair(1, 80), std::pair(2, 90)}) {
    Join remote = OpenedTable::request(rank, 7 + rank, starter);
    remote.info.host_id = remote.info.host = "b";
    remote.origin.one_starter = true;
    table.Table::join(100 + static_cast<SessionId>(rank), remote);
  }
  const Lines lines = table.seen();
  CHECK(lines.front() == "101 accepted");
  CHECK(
      lines[1].find("102 refused: rank 2 on host b (process 9) was started by process 90 (bash), and rank 1 on host b "
                    "(process 8) by process 80 (bash), so they are of two jobs") == 0);
}

TEST_CASE("a rank that comes again while its first connection ends is refused alone, and the job forms on") {
  OpenedTable table(3);
  table.Table::join(101, OpenedTable::request(1, 8));
  table.seen();
  table.Table::join(102, OpenedTable::request(1, 8));
  CHECK(table.seen() ==
        Lines{"102 refused: rank 1 is taken: rank 1 on host a (process 8) has it, and is this process; a process joins "
              "a job once: call dtrain::run() or init_process_group() only once"});
  CHECK_FALSE(table.job.cause());
}
