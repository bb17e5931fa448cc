#include "dtrain/rendezvous/membership/membership.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

std::vector<RankInfo> ranks_on(const std::vector<std::string>& hosts) {
  std::vector<RankInfo> ranks;
  for (const std::string& host : hosts) {
    RankInfo info;
    info.rank = static_cast<int>(ranks.size());
    info.host_id = "id-" + host;
    info.host = host;
    ranks.push_back(info);
  }
  return ranks;
}

std::string disagreement(const std::vector<RankInfo>& ranks) {
  const auto formed = form_membership(ranks, "job");
  const auto* cause = std::get_if<dtrain::Cause>(&formed);
  return cause == nullptr ? "" : cause->sentence();
}

}  // namespace

TEST_CASE("nodes are numbered by their first ranks, local ranks by rank") {
  const auto formed = form_membership(ranks_on({"b", "a", "b", "a", "c"}), "job-1");
  const auto& members = std::get<std::vector<Membership>>(formed);
  const std::vector<std::vector<int>> expected{{0, 0, 2}, {1, 0, 2}, {0, 1, 2}, {1, 1, 2}, {2, 0, 1}};
  for (std::size_t i = 0; i < members.size(); ++i) {
    CAPTURE(i);
    CHECK(members[i].rank == static_cast<int>(i));
    CHECK(members[i].world_size == 5);
    CHECK(members[i].node_count == 3);
    CHECK(members[i].node_rank == expected[i][0]);
    CHECK(members[i].local_rank == expected[i][1]);
    CHECK(members[i].local_world_size == expected[i][2]);
    CHECK(members[i].job == "job-1");
  }
  CHECK(members[0].other_host_rank == 1);
  CHECK(members[0].other_host == "a");
  CHECK(members[3].other_host_rank == 0);
  CHECK(members[3].other_host == "b");
}

TEST_CASE("ranks of one host have no other host, whatever its names") {
  auto ranks = ranks_on({"a", "a"});
  ranks[1].host = "another-name";
  const auto formed = form_membership(ranks, "job");
  CHECK(std::get<std::vector<Membership>>(formed)[1].other_host_rank == -1);
  CHECK(std::get<std::vector<Membership>>(formed)[1].node_count == 1);
}

TEST_CASE("right statements are accepted") {
  auto ranks = ranks_on({"a", "a", "b"});
  ranks[1].local_rank = 1;
  ranks[1].local_world_size = 2;
  ranks[1].node_rank = 0;
  ranks[2].node_rank = 1;
  ranks[2].node_count = 2;
  CHECK(disagreement(ranks) == "");
}

TEST_CASE("a rank in a part of a part still has its number in the job") {
  const auto formed = form_membership(ranks_on({"a", "a", "b", "b"}), "job");
  const Membership part = std::get<std::vector<Membership>>(formed)[3].in_part_of({3, 1, 2});
  CHECK(part.rank == 0);
  CHECK(part.ranks_in_job() == std::vector<int>{3, 1, 2});
  const Membership part_of_part = part.in_part_of({2, 0});
  CHECK(part_of_part.rank == 1);
  CHECK(part_of_part.world_size == 2);
  CHECK(part_of_part.rank_in_job() == 3);
  CHECK(part_of_part.ranks_in_job() == std::vector<int>{2, 3});
}

TEST_CASE("two host ids with one host name are named where a statement is wrong, with DTRAIN_HOST_ID") {
  auto ranks = ranks_on({"a", "b"});
  ranks[1].host = "a";
  ranks[0].local_world_size = 2;
  const std::string sentence = disagreement(ranks);
  CHECK_CONTAINS(sentence,
                 "rank 0 on host a was given local_world_size 2 by its launcher, but it is 1: no other rank shares "
                 "its host",
                 " (rank 1's host has the same name, a, but the host ids differ: id-a and id-b; where both are one "
                 "host, set DTRAIN_HOST_ID to one value for all of its ranks)");
  ranks[1].host = "b";
  CHECK(disagreement(ranks).find("DTRAIN_HOST_ID") == std::string::npos);
}

TEST_CASE("two hosts of one name are said to be such") {
  Membership members;
  members.host = members.other_host = "a";
  CHECK(
      members.other_host_text() ==
      "a (of the same name but with another host id: where both are one host, set DTRAIN_HOST_ID to one value for all "
      "of its ranks)");
  members.other_host = "b";
  CHECK(members.other_host_text() == "b");
}

TEST_CASE("a wrong statement is a disagreement that names the rank and both values") {
  auto ranks = ranks_on({"a", "a", "b"});
  ranks[2].local_rank = 2;
  CHECK(
      disagreement(ranks) ==
      "ranks disagree: rank 2 on host b was given local_rank 2 by its launcher, but it is 0: no other rank shares its "
      "host, and their local ranks follow their ranks; correct the variable or flag that states it, or leave it out");
  ranks[1].local_world_size = 3;
  CHECK_CONTAINS(disagreement(ranks),
                 "rank 1 on host a was given local_world_size 3 by its launcher, but it is 2: 2 ranks "
                 "share its host");
  ranks[0].node_rank = 1;
  CHECK_CONTAINS(disagreement(ranks),
                 "rank 0 on host a was given node_rank 1 by its launcher, but it is 0: the ranks run on "
                 "2 hosts");
  ranks[0].node_count = 1;
  CHECK_CONTAINS(disagreement(ranks), "node_count 1");
}
