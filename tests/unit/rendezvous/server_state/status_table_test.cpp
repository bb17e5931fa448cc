#include "dtrain/rendezvous/server_state/status_table.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

using Kind = ReportedStatus::Kind;

RankStatus in_phase(RankPhase phase, std::uint64_t step, std::uint64_t unchanged_ms = 0) {
  RankStatus status;
  status.phase = phase;
  status.step = step;
  status.unchanged_ms = unchanged_ms;
  return status;
}

RankStatus reducing(std::uint64_t sequence, std::uint64_t unchanged_ms = 0) {
  RankStatus status = in_phase(RankPhase::finish, 7, unchanged_ms);
  status.channels = {{"ddp-0", "all_reduce (sum) of 8 f32", sequence, sequence, unchanged_ms, true}};
  return status;
}

ReportedStatus of_rank(int rank, std::optional<RankStatus> status, std::string host = "a", Kind kind = Kind::current) {
  return {rank, std::move(host), std::move(status), kind, 1500ms};
}

std::string text_of(const std::vector<ReportedStatus>& ranks) {
  std::string text;
  for (const std::string& line : status_table(ranks))
    text += line + '\n';
  return text;
}

}  // namespace

TEST_CASE("ranks in the same place share a line, with the longest of their times, and the one behind comes first") {
  RankStatus reads = in_phase(RankPhase::outside, 6, 12000);
  reads.thread = "sleeps in read() of /data/shard-17";
  reads.channels = {{"ddp-0", "all_reduce (sum) of 8 f32", 6, 6, 0, false}};
  CHECK(text_of({of_rank(0, reducing(7, 11000)), of_rank(1, reducing(7, 12000)), of_rank(2, reads, "b"),
                 of_rank(3, reducing(7, 0))}) ==
        "  rank 2 (host b), step 6: between steps for 12.0 s; its thread sleeps in read() of /data/shard-17\n"
        "  ranks 0-1 and 3 (host a), step 7: in finish() for 12.0 s; in all_reduce (sum) of 8 f32, operation 7 of "
        "channel 'ddp-0', which rank 2 has not begun\n");
}

TEST_CASE("a line names the host where there is one, and more ranks that are behind than one") {
  CHECK(text_of({of_rank(0, reducing(7), "a"), of_rank(1, reducing(7), "b"), of_rank(2, reducing(5), "a"),
                 of_rank(3, reducing(5), "a")}) ==
        "  ranks 2-3 (host a), step 7: in finish(); in all_reduce (sum) of 8 f32, operation 5 of channel "
        "'ddp-0'\n"
        "  ranks 0-1, step 7: in finish(); in all_reduce (sum) of 8 f32, operation 7 of channel 'ddp-0', "
        "which ranks 2-3 have not begun\n");
}

TEST_CASE("each phase has its words; a lost rank comes first, then one that sends nothing") {
  RankStatus backward = in_phase(RankPhase::backward, 9);
  backward.ready = 41;
  backward.parameters = 148;
  backward.missing = "parameter 3 'fc.weight'";
  backward.thread = "runs";
  RankStatus barrier = in_phase(RankPhase::outside, 9);
  barrier.channels = {{"group", "barrier", 2, 2, 0, true}};
  RankStatus message = in_phase(RankPhase::outside, 10);
  message.channels = {{"group", "send of 3 f32 to rank 1", 0, 2, 0, true}};
  CHECK(text_of({of_rank(0, backward), of_rank(1, barrier), of_rank(2, in_phase(RankPhase::unwinding, 11)),
                 of_rank(3, in_phase(RankPhase::finish, 12), "b", Kind::silent),
                 of_rank(4, in_phase(RankPhase::outside, 13, 300), "b", Kind::lost), of_rank(5, message),
                 of_rank(6, in_phase(RankPhase::finish, 12), "b", Kind::ended)}) ==
        "  rank 4 (host b), step 13: lost; 1.5 s before: between steps for 0.3 s\n"
        "  rank 3 (host b), step 12: sends nothing; 1.5 s before: in finish()\n"
        "  rank 6 (host b), step 12: has ended; 1.5 s before: in finish()\n"
        "  rank 0 (host a), step 9: in the backward pass, 41 of 148 gradients ready, not yet parameter 3 "
        "'fc.weight'; its thread runs\n"
        "  rank 1 (host a), step 9: in a collective; in barrier, operation 2 of channel 'group'\n"
        "  rank 5 (host a), step 10: in a collective; in send of 3 f32 to rank 1\n"
        "  rank 2 (host a), step 11: has thrown an exception\n");
}

TEST_CASE("a thousand ranks in as many places are twelve lines and a count, and a hang of them is two lines") {
  std::vector<ReportedStatus> ranks;
  for (int rank = 0; rank < 1000; ++rank)
    ranks.push_back(of_rank(rank, in_phase(RankPhase::outside, static_cast<std::uint64_t>(rank) + 1)));
  Strings lines = status_table(ranks);
  REQUIRE(lines.size() == 13);
  CHECK(lines.front() == "  rank 0 (host a), step 1: between steps");
  CHECK(lines.back() == "  and 988 ranks in 988 other places");
  ranks.resize(13);
  CHECK(status_table(ranks).back() == "  and 1 rank in 1 other place");
  ranks.clear();
  for (int rank = 0; rank < 1000; ++rank)
    ranks.push_back(of_rank(rank, reducing(rank == 500 ? 6 : 7), "host-" + std::to_string(rank / 8)));
  lines = status_table(ranks);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].starts_with("  rank 500 (host host-62), step 7: in finish(); "));
  CHECK(lines[1] ==
        "  ranks 0-499 and 501-999, step 7: in finish(); in all_reduce (sum) of 8 f32, operation 7 of channel 'ddp-0', "
        "which rank 500 has not begun");
}

TEST_CASE("no rank makes no line, and ranks that have sent nothing share one") {
  CHECK(text_of({}) == "");
  CHECK(text_of({of_rank(0, std::nullopt), of_rank(1, std::nullopt), of_rank(2, std::nullopt, "b", Kind::lost),
                 of_rank(3, std::nullopt, "b", Kind::ended), of_rank(4, in_phase(RankPhase::outside, 0))}) ==
        "  rank 2 (host b): lost, before its first status\n"
        "  rank 3 (host b): has ended, before its first status\n"
        "  ranks 0-1 (host a): joined, before its first status\n"
        "  rank 4 (host a), step 0: before its first step\n");
}

TEST_CASE("a rank is behind in an operation only by a status that came while the other one waited in it") {
  ReportedStatus waiting = of_rank(0, reducing(1005, 400));
  waiting.age = 100ms;
  ReportedStatus other = of_rank(1, reducing(915, 0));
  other.age = 900ms;  // since then it has called many more
  CHECK_FALSE(support::contains(text_of({waiting, other}), "not begun"));
  other.age = 500ms;
  CHECK_CONTAINS(text_of({waiting, other}), "operation 1005 of channel 'ddp-0', which rank 1 has not begun");
}

TEST_CASE("a rank without part in a message is not said to be missing in it, and others are in a collective alone") {
  RankStatus receives = in_phase(RankPhase::outside, 3);
  receives.channels = {{"group", "recv of 4 f32 from rank 1", 0, 6, 0, true}};
  RankStatus behind = in_phase(RankPhase::outside, 3);
  behind.channels = {{"group", "barrier", 5, 5, 0, false}};
  CHECK(text_of({of_rank(0, receives), of_rank(2, behind)}) ==
        "  rank 2 (host a), step 3: between steps\n"
        "  rank 0 (host a), step 3: in a collective; in recv of 4 f32 from rank 1\n");
}

TEST_CASE("threads that do different things in the same place share a line, with what the longest waiting one does") {
  const auto reading = [](const char* thread, std::uint64_t unchanged_ms) {
    RankStatus status = in_phase(RankPhase::outside, 3, unchanged_ms);
    status.thread = thread;
    return status;
  };
  CHECK(text_of({of_rank(0, reading("runs", 500)), of_rank(1, reading("sleeps in read() of pipe:[7]", 900)),
                 of_rank(2, reading("sleeps in read() of pipe:[8]", 700))}) ==
        "  ranks 0-2 (host a), step 3: between steps for 0.9 s; one's thread sleeps in read() of pipe:[7]\n");
}

TEST_CASE("the line above a table says what ended the job") {
  CHECK(status_heading({CauseKind::lost, 3, "a", ""}) ==
        "what each rank did when rank 3 was lost (rank, host, step, phase):");
  CHECK(status_heading({CauseKind::timeout, 0, "a", ""}) ==
        "what each rank did when rank 0 timed out (rank, host, step, phase):");
  CHECK(status_heading({CauseKind::exception, 1, "a", ""}) ==
        "what each rank did when rank 1 failed (rank, host, step, phase):");
  CHECK(status_heading({CauseKind::disagreement, -1, "", ""}) ==
        "what each rank did when the job failed (rank, host, step, phase):");
}
