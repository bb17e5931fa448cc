// ctest: TIMEOUT 120
// Checkpoints of a whole job, whose ranks are threads.

#include "unit/public_interface/prelude.hpp"

namespace {

struct Training {
  std::vector<float> weights = std::vector<float>(1000);
  std::int64_t steps = 0;

  std::vector<dtrain::NamedTensor> state() {
    return {{"weights", dtrain::tensor_view(weights.data(), {10, 100})},
            {"none", dtrain::tensor_view(weights.data(), {0})},
            {"steps", dtrain::tensor_view(&steps, {})}};
  }
};

Training trained(int rank, std::int64_t steps) {
  Training training;
  for (std::size_t i = 0; i < training.weights.size(); ++i)
    training.weights[i] = static_cast<float>(rank) * 1e6F + static_cast<float>(i);
  training.steps = steps;
  return training;
}

std::string host_if(bool named) {
  return named ? " on host " + dtrain::rendezvous::host_identity().name : "";
}

/// How the Error of a file's work ends on every rank.
std::string rank_0_does_it() {
  return " (on rank 0" + host_if(true) + ", which does it for all ranks)";
}

}  // namespace

TEST_CASE("one to four ranks have rank 0's values after they have loaded what they saved, also in a part of the job") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const support::TemporaryDirectory folder;
    const std::string path = folder.path + "/checkpoint";
    run_well(ranks, [&](const dtrain::ProcessGroup<Policy>& whole) {
      const auto check = [&](const dtrain::ProcessGroup<Policy>& group, const std::string& file) {
        Training training = trained(group.rank(), 5);
        if (dtrain::load_checkpoint(group, file, training.state())) throw std::logic_error("there is no file");
        if (training.weights != trained(group.rank(), 5).weights) throw std::logic_error("values without a file");
        for (const std::int64_t steps : {6, 7}) {
          training.steps = steps + group.rank();
          dtrain::save_checkpoint(group, file, training.state());
        }
        Training again = trained(group.rank() + 9, 0);
        if (!dtrain::load_checkpoint(group, file, again.state())) throw std::logic_error("there is a file");
        if (again.weights != trained(0, 7).weights || again.steps != 7) throw std::logic_error("other values");
      };
      check(whole, path);
      const auto part = whole.split(whole.rank() % 2);
      check(part, path + std::to_string(whole.rank() % 2));
    });
  }
}

TEST_CASE("a checkpoint that cannot be written is the same Error on every rank, and who catches it goes on") {
  Sentences sentences;
  run_well(3, [&](const dtrain::ProcessGroup<Policy>& group) {
    Training training = trained(group.rank(), 1);
    sentences.note([&] { dtrain::save_checkpoint(group, "/nowhere/checkpoint", training.state()); });
    group.barrier();
  });
  CHECK(sentences.texts() ==
        std::vector<std::string>(3,
                                 "No such file or directory: writing the file /nowhere/checkpoint failed: No such file "
                                 "or directory; what was there is unchanged; name a file in a folder that can be "
                                 "written and has room" +
                                     rank_0_does_it()));
}

TEST_CASE("a checkpoint that cannot be written is blamed on the rank that writes, whichever rank lets the Error go") {
  for (const int careless : {0, 2}) {
    CAPTURE(careless);
    const auto ends = support::run_groups<Policy>(3, [&](const dtrain::ProcessGroup<Policy>& group) {
      Training training = trained(group.rank(), 1);
      try {
        dtrain::save_checkpoint(group, "/nowhere/checkpoint", training.state());
      } catch (const dtrain::Error& error) {
        if (group.rank() == careless) {
          CHECK(error.rank() == 0);
          throw;
        }
      }
      group.barrier();
    });
    const std::string file = "writing the file /nowhere/checkpoint failed: No such file or directory; ";
    for (int rank = 0; rank < 3; ++rank) {
      const support::RankEnd& end = ends[static_cast<std::size_t>(rank)];
      CHECK(end.job_failed == (rank != careless && rank != 0));  // for rank 0 it is its own failure
      CHECK(end.text.starts_with(rank == careless ? file : "rank 0" + host_if(careless == 0) + " failed: " + file));
      CHECK(end.text.ends_with(rank_0_does_it()));
    }
  }
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a damaged checkpoint is the same Error on every rank, and leaves the values as they were") {
  std::ofstream(path, std::ios::binary) << std::string("\x30\0\0\0\0\0\0\0{\"and no more", 20);
  Sentences sentences;
  run_well(2, [&](const dtrain::ProcessGroup<Policy>& group) {
    Training training = trained(group.rank(), 1);
    sentences.note([&] { dtrain::load_checkpoint(group, path, training.state()); });
    if (training.weights != trained(group.rank(), 1).weights) throw std::logic_error("values have changed");
  });
  CHECK(sentences.texts() ==
        std::vector<std::string>(2, "protocol violation: the checkpoint " + path +
                                        " cannot be loaded: its length, 20 bytes, is not what it "
                                        "says; if it is still being copied, load it again when it is whole, else load "
                                        "another checkpoint" +
                                        rank_0_does_it()));
}

TEST_CASE_FIXTURE(
    TemporaryFile,
    "ranks that load other tensors end with the first difference and both ranks, before a value changes") {
  Training saved = trained(0, 3);
  dtrain::ddp::write_checkpoint_file(path, saved.state());
  expect_ends(2, {"'weights' is f32 [20, 50], rank 0's is f32 [10, 100]"}, [&](const Group& group) {
    Training training = trained(group.rank(), 1);
    std::vector<dtrain::NamedTensor> state = training.state();
    if (group.rank() == 1) state[0].value.shape = {20, 50};
    dtrain::load_checkpoint(group, path, state);
  });
}

TEST_CASE_FIXTURE(
    TemporaryFile,
    "ranks that give a checkpoint different names have the same Error on every rank, and nothing is written") {
  Sentences saving;
  Sentences loading;
  run_well(3, [&](const dtrain::ProcessGroup<Policy>& group) {
    Training training = trained(group.rank(), 1);
    const std::string own = path + std::to_string(group.rank());
    saving.note([&] { dtrain::save_checkpoint(group, own, training.state()); });
    loading.note([&] { dtrain::load_checkpoint(group, own, training.state()); });
    if (dtrain::load_checkpoint(group, path + "0", training.state())) throw std::logic_error("a file was written");
    dtrain::save_checkpoint(group, path, training.state());
  });
  const auto expected = [&](const std::string& doing) {
    const std::string sentence = "rank 0 is " + doing + path + "0, but rank 1 is " + doing + path +
                                 "1; give the same name on every rank, and wait for pending checkpoints in the same "
                                 "order";
    return std::vector<std::string>(3, make_error_code(dtrain::Errc::disagreement).message() + ": " + sentence);
  };
  CHECK(saving.texts() == expected("writing the file "));
  CHECK(loading.texts() == expected("reading the checkpoint "));
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "tensors of all sizes come to every rank, those that share a broadcast and those that do not") {
  const std::vector<std::size_t> sizes{1, 0, 4096, 4097, 3, 100000, 7};
  const auto values_of = [&](int rank) {
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < 300; ++i)
      values.emplace_back(sizes[i % sizes.size()], static_cast<float>(i) + 1000.0F * static_cast<float>(rank));
    return values;
  };
  run_well(2, [&](const dtrain::ProcessGroup<Policy>& group) {
    std::vector<std::vector<float>> values = values_of(group.rank());
    std::vector<dtrain::NamedTensor> tensors;
    for (std::vector<float>& value : values)
      tensors.push_back({std::to_string(tensors.size()), dtrain::tensor_view(value)});
    dtrain::save_checkpoint(group, path, tensors);
    for (std::vector<float>& value : values)
      value.assign(value.size(), -1.0F);
    if (!dtrain::load_checkpoint(group, path, tensors)) throw std::logic_error("there is a file");
    if (values != values_of(0)) throw std::logic_error("other values");
  });
}

TEST_CASE_FIXTURE(TemporaryFile, "once a rank has failed no checkpoint is written") {
  Training saved = trained(0, 3);
  dtrain::ddp::write_checkpoint_file(path, saved.state());
  const std::string before = support::file_content(path);
  const auto ends = support::run_groups<Policy>(2, [&](const dtrain::ProcessGroup<Policy>& group) {
    if (group.rank() == 1) throw std::runtime_error("its data is bad");
    Training training = trained(0, 4);
    dtrain::save_checkpoint(group, path, training.state());
  });
  CHECK(ends[0].job_failed);
  CHECK_CONTAINS(ends[0].text, "its data is bad");
  CHECK(support::file_content(path) == before);
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "where rank 0 alone saves, the error names save_checkpoint and that every rank calls it") {
  const auto ends = support::run_groups<Policy>(2, [&](const dtrain::ProcessGroup<Policy>& group) {
    Training training = trained(0, 4);
    if (group.rank() == 0) dtrain::save_checkpoint(group, path, training.state());
  });
  CHECK_CONTAINS(ends[0].text, "cannot be finished: rank 1 has left",
                 " (rank 0 was in save_checkpoint of '" + path + "': every rank calls it, and rank 0 writes)");
}

TEST_CASE("a rank whose own wait in save_checkpoint times out names it too, and other errors stay as they are") {
  struct LateGroup {
    struct Members {
      int rank_in_job() const { return 3; }
    };
    dtrain::Errc code;
    Members members() const { return {}; }
    void barrier() const { throw dtrain::Error(code, "rank 3 on host vm timed out: barrier"); }
  };
  CHECK_THROWS_WITH_AS(
      dtrain::ddp::detail::barrier_of_save(LateGroup{dtrain::Errc::timeout}, "file"),
      "rank 3 on host vm timed out: barrier (rank 3 was in save_checkpoint of 'file': every rank calls "
      "it, and rank 0 writes)",
      dtrain::Error);
  CHECK_THROWS_WITH_AS(dtrain::ddp::detail::barrier_of_save(LateGroup{dtrain::Errc::closed}, "file"),
                       "rank 3 on host vm timed out: barrier", dtrain::Error);
}
