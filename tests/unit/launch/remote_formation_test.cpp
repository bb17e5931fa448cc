#include "dtrain/launch/remote_formation.hpp"

#include "dtrain/launch/configuration/worker_program.hpp"

#include "unit/launch/prelude.hpp"

TEST_CASE("a launcher without the store knows that the job has finished, and its ranks, by what workers report alone") {
  RemoteFormation formation;
  formation.process_ended("h", 5, 0, "exit code 0");
  CHECK_FALSE(formation.is_over());
  report_end(-1, {5, true});
  CHECK_FALSE(formation.is_over());
  report_end(formation.report_writer(), {5, false});
  CHECK(formation.is_over());
  CHECK(formation.find("h", 5) == nullptr);
  report_end(formation.report_writer(), {6, true});
  REQUIRE(formation.find("h", 6) != nullptr);
  CHECK(formation.find("h", 6)->is_member());
  CHECK(formation.find("h", 5) == nullptr);
}

TEST_CASE("a worker whose launcher has ended reports the job's end to nobody, and lives") {
  Pipe pipe = make_pipe();
  pipe.reader.reset();
  report_end(pipe.writer.get(), {6, true});
  CHECK(::fcntl(pipe.writer.get(), F_GETFD) == FD_CLOEXEC);
}

TEST_CASE("a worker's children do not have the descriptor by which the worker reports the job's end") {
  const RemoteFormation formation;
  REQUIRE(::fcntl(formation.report_writer(), F_SETFD, 0) == 0);  // as a spawned worker has it
  Environment environment{{"DTRAIN_WORLD_SIZE", "1:2"},
                          {"DTRAIN_MASTER_ADDR", "127.0.0.1"},
                          {"DTRAIN_MASTER_PORT", "29500"},
                          {"DTRAIN_LAUNCHER_PROCESS", "1"}};
  environment[report_variable] = std::to_string(formation.report_writer());
  CHECK(rank_process_of_launcher(Variables(environment), {"train"}).report_descriptor == formation.report_writer());
  CHECK(::fcntl(formation.report_writer(), F_GETFD) == FD_CLOEXEC);
  CHECK(without_outer_job(environment).count(report_variable) == 0);
}
