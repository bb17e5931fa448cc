#include "support/captured_stderr.hpp"
#include "support/gate.hpp"
#include "unit/ddp/prelude.hpp"

using support::FakeGroupHandle;

namespace {

ModelSignature layers(std::size_t count, const std::string& name = "layer") {
  ModelSignature signature{25, 1, dtrain::ReduceOp::average, {}};
  for (std::size_t i = 0; i < count; ++i)
    signature.parameters.push_back({name + std::to_string(i), {3, 4}, dtrain::DType::f32, dtrain::DeviceKind::host});
  return signature;
}

/// What each rank's call ended with: the sentence, or nothing.
std::vector<std::string> agree(const std::shared_ptr<FakeJob>& job, const std::vector<ModelSignature>& models,
                               const std::string& prefix = "ddp/1/") {
  std::vector<std::string> results(models.size());
  support::on_threads(models.size(), [&](std::size_t rank) {
    const int number = static_cast<int>(rank);
    try {
      agree_blocking(*FakeGroupHandle::of(job, number, static_cast<int>(models.size())), prefix, models[rank],
                     Deadline::after(std::chrono::seconds(60)), "testing");
    } catch (const dtrain::JobFailed& failed) {
      results[rank] = std::string("JobFailed ") + failed.what();
    } catch (const dtrain::Error& error) {
      results[rank] = (error.code() == make_error_code(dtrain::Errc::disagreement) ? "disagreement " : "error ") +
                      std::string(error.what());
    }
  });
  return results;
}

}  // namespace

TEST_CASE("ranks with the same model agree, and read nothing but the summary") {
  for (const std::size_t ranks : {1U, 2U, 5U}) {
    const auto job = std::make_shared<FakeJob>(static_cast<int>(ranks));
    CHECK(agree(job, std::vector(ranks, layers(3))) == std::vector<std::string>(ranks));
    CHECK(agree(job, std::vector(ranks, layers(4)), "ddp/2/") == std::vector<std::string>(ranks));
    CHECK(FakeStore(job, 0).reads_below("ddp/1/") == static_cast<int>(ranks) - 1);
  }
}

TEST_CASE("a model that differs on one rank fails every rank with the same sentence") {
  const auto job = std::make_shared<FakeJob>(4);
  std::vector<ModelSignature> models(4, layers(3));
  models[2].parameters[1].shape = {3, 5};
  const std::string sentence =
      "ranks disagree: rank 2's parameter 1 'layer1' is f32 [3, 5], rank 0's is f32 [3, 4]; build the same model on "
      "all ranks";
  const std::vector<std::string> results = agree(job, models);
  for (const std::size_t rank : {0U, 1U, 3U})
    CHECK(results[rank] == "JobFailed " + sentence);
  CHECK(results[2] == "disagreement " + sentence);
}

TEST_CASE("where rank 0 is the odd one out all ranks still end with one and the same sentence") {
  const auto job = std::make_shared<FakeJob>(4);
  std::vector<ModelSignature> models(4, layers(2));
  models[0] = layers(3);
  const std::vector<std::string> results = agree(job, models);
  CHECK(results[0].starts_with("JobFailed ranks disagree: rank 0 has 3 parameters, rank "));
  for (const std::string& result : results)
    CHECK(result.substr(result.find(' ')) == results[0].substr(results[0].find(' ')));
}

TEST_CASE("a signature larger than a value of the store is compared whole") {
  const auto job = std::make_shared<FakeJob>(2);
  std::vector<ModelSignature> models(2, layers(3000, std::string(800, 'n')));
  models[1].parameters[2999].dtype = dtrain::DType::f64;
  const std::vector<std::string> results = agree(job, models);
  CHECK_CONTAINS(results[1], "rank 1's parameter 2999", "is f64 [3, 4], rank 0's is f32 [3, 4]");
}

TEST_CASE("what another program published under rank 0's key is refused") {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  for (const char* summary : {"", "nonsense", "abc 99999999999999999999", "abc -1", "abc 0"}) {
    CAPTURE(summary);
    const auto fresh = std::make_shared<FakeJob>(2);
    FakeStore(fresh, 0).set("ddp/1/summary", summary, deadline).wait();
    CHECK_THROWS_WITH_AS(agree_blocking(*FakeGroupHandle::of(fresh, 1, 2), "ddp/1/", layers(1), deadline, "testing"),
                         doctest::Contains("cannot read the model signature of rank 0"), dtrain::Error);
  }
}

TEST_CASE("a rank that never comes ends the wait at the deadline") {
  const auto job = std::make_shared<FakeJob>(2);
  CHECK_THROWS_WITH_AS(agree_blocking(*FakeGroupHandle::of(job, 0, 2), "ddp/1/", layers(1),
                                      Deadline::after(std::chrono::milliseconds(50)), "testing"),
                       doctest::Contains("ddp/1/agreed"), dtrain::Error);
}

TEST_CASE("rank 0 says that it waits for ranks that have not come, and agrees with them when they come") {
  const auto job = std::make_shared<FakeJob>(2);
  support::CapturedStderr captured;
  support::on_threads(2, [&](std::size_t rank) {
    if (rank == 1) {
      CHECK(support::holds_soon(
          [&] { return support::contains(captured.text(), "dtrain: rank 0: still waits in testing, "); }));
    }
    agree_blocking(*FakeGroupHandle::of(job, static_cast<int>(rank), 2), "ddp/1/", layers(1),
                   Deadline::after(std::chrono::seconds(60)), "testing", std::chrono::milliseconds(20));
  });
}

TEST_CASE("ranks of a part of the job are named by their numbers in the job") {
  const auto job = std::make_shared<FakeJob>(2);
  std::vector<std::string> results(2);
  support::on_threads(2, [&](std::size_t rank) {
    dtrain::rendezvous::Membership members;
    members.rank = static_cast<int>(rank);
    members.world_size = 2;
    members.job_ranks = std::make_shared<const std::vector<int>>(std::vector<int>{5, 6});
    results[rank] = support::sentence_of([&] {
      agree_blocking(FakeGroupHandle(job, members), "part/", layers(1, rank == 0 ? "a" : "b"),
                     Deadline::after(std::chrono::seconds(60)), "testing");
    });
  });
  CHECK(results[0] ==
        "ranks disagree: rank 6's parameter 0 'b0' is f32 [3, 4], rank 5's is 'a0', f32 [3, 4]; build the same model "
        "on all ranks");
  CHECK(results[1] == results[0]);
}
