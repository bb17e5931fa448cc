// How operations over Gloo end before their time.
// ctest: LABELS no-tsan
// Gloo's library is not instrumented: where a message is abandoned, its own thread and ours are ordered by the count of
// a shared pointer in there, which ThreadSanitizer does not see.

#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("failures over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include <sys/wait.h>

#include "support/communicator_contract.hpp"

COMMUNICATOR_FAILURE_CONTRACT(GlooRank)
HOST_STREAM_CONTRACT(GlooRank)

TEST_CASE("opening with a rank that never comes ends with the deadline, or with the job") {
  for (const bool job_fails : {false, true}) {
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& thread) {
      if (thread.rank() == 1) {
        std::this_thread::sleep_for(100ms);
        if (job_fails) job->fail({CauseKind::exception, 1, "here", "no more"});
        return;
      }
      const auto context = support::channel_context(job, 0, 2, "group", 10s);
      const auto start = std::chrono::steady_clock::now();
      CHECK_THROWS_AS(dtrain::backend::Gloo::open_blocking(context, Deadline::after(job_fails ? 10s : 1s)),
                      dtrain::Error);
      CHECK(std::chrono::steady_clock::now() - start < 5s);
    });
  }
}

TEST_CASE("a peer that is there but never connects ends the opening with the deadline, or with the job") {
  for (const bool job_fails : {false, true}) {
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& thread) {
      const auto context = support::channel_context(job, thread.rank(), 2, "group", 10s);
      if (thread.rank() == 1) {
        // Rank 0's own address with the highest port: of two sockets the one with the lower waits for the other.
        auto info = dtrain::from_bytes<dtrain::backend::gloo::PeerInfo>(
            context.store.get_blocking("group/gloo-0", Deadline::after(60s)), "rank 0's addresses");
        info.addresses[2] = info.addresses[3] = static_cast<char>(0xff);
        context.store.set_blocking("group/gloo-1", dtrain::to_bytes(info), Deadline::after(60s));
        std::this_thread::sleep_for(300ms);
        if (job_fails) job->fail({CauseKind::exception, 1, "here", "no more"});
        context.failure->block_until_failed(Deadline::after(60s));
        return;
      }
      const auto start = std::chrono::steady_clock::now();
      const auto open = [&] { dtrain::backend::Gloo::open_blocking(context, Deadline::after(job_fails ? 10s : 1s)); };
      CHECK_THROWS_AS(open(), dtrain::Error);
      CHECK(std::chrono::steady_clock::now() - start < 5s);
    });
  }
}

TEST_CASE("a process that a rank forks ends its copy of the communicator, and the rank's goes on") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    std::optional<GlooRank> self(std::in_place, job, thread.rank(), 2);
    self->communicator.enqueue(Barrier{}, self->stream.ref());
    CHECK(self->wait());
    if (thread.rank() == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(5);
        self->communicator.abort({CauseKind::exception, 0, "here", "the child's own trouble"});
        self.reset();
        ::_exit(7);
      }
      int status = 0;
      CHECK(::waitpid(child, &status, 0) == child);
      CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
    }
    for (int round = 0; round < 3; ++round) {
      std::vector<float> memory(100'000, 1.0F);
      const BufferView view = dtrain::buffer_view(std::span(memory));
      self->communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self->stream.ref());
      CHECK(self->wait());
      CHECK(memory.back() == 2.0F);
    }
  });
}

#endif
