// The first flag of a command line; what choose_start() decides is in launch_vectors.json.

#include "unit/identity/prelude.hpp"

namespace {

std::string_view first_worker_flag(const std::vector<std::string>& arguments) {
  return first_flag(arguments, worker_flags);
}

}  // namespace

TEST_CASE("the first flag among the arguments is found as it is written, in any spelling") {
  CHECK(first_worker_flag({"train", "--epochs=3", "--nproc-per-node=4", "--nnodes=2"}) == "--nproc-per-node=4");
  CHECK(first_worker_flag({"train", "--node_rank", "1"}) == "--node_rank");
  CHECK(first_worker_flag({"train", "--nproc", "2"}) == "--nproc");
  CHECK(first_flag(std::vector<std::string>{"train", "--help_launch"}, workerless_flags) == "--help_launch");
}

TEST_CASE("no flag is the program's name, what stands after --, and a name that only begins as one") {
  CHECK(first_worker_flag({}).empty());
  CHECK(first_worker_flag({"--nnodes=2", "--epochs=3"}).empty());
  CHECK(first_worker_flag({"train", "--", "--nnodes=2"}).empty());
  CHECK(first_worker_flag({"train", "--nnodes-of-mine=2", "-nnodes", "nnodes=2", "--in-process"}).empty());
}
