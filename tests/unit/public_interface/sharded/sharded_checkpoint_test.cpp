// Checkpoints with a ShardedOptimizer: resumed on other numbers of ranks to the bit, damaged files, and what is
// removed.

#include "unit/public_interface/prelude.hpp"

using namespace whole_optimizer;

namespace sharded_checkpoint_test {

using Values = std::vector<std::vector<float>>;

/// Three steps, a checkpoint, and two steps more, with the same gradients on every rank, so that numbers of ranks that
/// are powers of two give the same averages. @returns the weights at the end
template <class Rule>
Values saved(int ranks, const std::string& path, Rule rule, std::size_t bucket_bytes) {
  Values end;
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    ShardedOptimizer optimizer{ddp, rule};
    for (int number = 0; number < 5; ++number) {
      if (number == 3) dtrain::save_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer);
      ddp.backward(backward(model, number, 0), optimizer);
    }
    if (group.rank() == 0) end = model.values;
  });
  return end;
}

/// The number of ranks that, resumed from the checkpoint, come to other weights.
template <class Rule>
int wrong_ranks(int ranks, const std::string& path, Rule rule, std::size_t bucket_bytes, const Values& expected) {
  std::atomic<int> wrong{0};
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    ShardedOptimizer optimizer{ddp, rule};
    const bool loaded = dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer);
    wrong += loaded && optimizer.steps() == 3 ? 0 : 1;
    for (int number = 3; number < 5; ++number)
      ddp.backward(backward(model, number, 0), optimizer);
    wrong += equal_bits(model.values, expected) ? 0 : 1;
  });
  return wrong;
}

TEST_CASE_FIXTURE(TemporaryFile, "a training goes on to the bit on any number of ranks, with any buckets") {
  for (const int savers : {1, 2, 4}) {
    const Values expected = saved(savers, path, optimizers::AdamW{.rate = 0.01F}, 3000);
    CHECK(folder.files() == static_cast<std::size_t>(savers) + 1);  // none of the checkpoint before
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(savers);
      CAPTURE(ranks);
      CHECK(wrong_ranks(ranks, path, optimizers::AdamW{.rate = 0.01F}, 3000, expected) == 0);
      CHECK(wrong_ranks(ranks, path, optimizers::AdamW{.rate = 0.01F}, 0, expected) == 0);
    }
  }
  const Values expected = saved(2, path, optimizers::Sgd{}, 0);  // without state
  CHECK(wrong_ranks(4, path, optimizers::Sgd{}, 3000, expected) == 0);
}

/// The model's values, by their positions.
std::vector<dtrain::NamedTensor> numbered(Model& model) {
  std::vector<dtrain::NamedTensor> values;
  for (const dtrain::Parameter& parameter : model.list)
    values.push_back({std::to_string(values.size()), parameter.value});
  return values;
}

TEST_CASE_FIXTURE(TemporaryFile, "the state of parameters with one name, also the longest, is saved and loaded") {
  for (const std::string& name : {std::string(), std::string(dtrain::ddp::max_parameter_name_bytes, 'n')}) {
    const auto with_names = [&](auto&& body) {
      return [&](const Group& group) {
        Model model(sizes);
        for (dtrain::Parameter& parameter : model.list)
          parameter.name = name;
        DistributedDataParallel ddp{model, group};
        ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = 0.01F}};
        body(group, model, ddp, optimizer);
      };
    };
    Values end;
    run_well(2, with_names([&](const Group& group, Model& model, auto& ddp, auto& optimizer) {
               for (int number = 0; number < 5; ++number) {
                 if (number == 3) dtrain::save_checkpoint(group, path, numbered(model), optimizer);
                 ddp.backward(backward(model, number, 0), optimizer);
               }
               if (group.rank() == 0) end = model.values;
             }));
    for (const int ranks : {1, 2}) {
      run_well(ranks, with_names([&](const Group& group, Model& model, auto& ddp, auto& optimizer) {
                 CHECK(dtrain::load_checkpoint(group, path, numbered(model), optimizer));
                 for (int number = 3; number < 5; ++number)
                   ddp.backward(backward(model, number, 0), optimizer);
                 CHECK(equal_bits(model.values, end));
               }));
    }
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "a checkpoint may end in .index.json, and is none of several files") {
  const std::string name = path + ".index.json";
  run_well(1, [&](const Group& group) {
    Model model(sizes);
    dtrain::save_checkpoint(group, name, numbered(model));
    CHECK(dtrain::load_checkpoint(group, name, numbered(model)));
  });
}

/// What each rank's load throws.
template <class Rule>
std::vector<std::string> errors_of_loading(int ranks, const std::string& path, Rule rule) {
  std::vector<std::string> errors;
  std::mutex mutex;
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, rule};
    bool has_file = true;
    const std::string error = sentence_of(
        [&] { has_file = dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer); });
    group.barrier();  // the job has not failed
    const std::lock_guard lock(mutex);
    errors.push_back(has_file ? error : "no file");
  });
  return errors;
}

bool all_contain(const std::vector<std::string>& errors, const std::string& part) {
  for (const std::string& error : errors) {
    INFO(error);
    CHECK_CONTAINS(error, part);
    if (error.find(part) == std::string::npos) return false;
  }
  return errors.size() == 3;
}

std::string shard_of(const TemporaryDirectory& folder, const std::string& end) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    if (entry.path().string().ends_with(end)) return entry.path().string();
  }
  return "";
}

TEST_CASE_FIXTURE(
    TemporaryFile,
    "files that are missing, damaged or of another optimizer are refused by every rank, and the job goes on") {
  const optimizers::Adam rule;
  CHECK(all_contain(errors_of_loading(3, path, rule), "no file"));
  saved(2, path, rule, 3000);
  CHECK(all_contain(errors_of_loading(3, path, optimizers::Momentum{}), "other parameters or another rule"));
  const std::string second = shard_of(folder, "-1");
  REQUIRE(second != "");
  {
    std::fstream file(second, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-200, std::ios::end);
    file.put('x');
  }
  CHECK(all_contain(errors_of_loading(3, path, rule), "does not have the digest"));
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 8);
  CHECK(all_contain(errors_of_loading(3, path, rule), "its length"));
  std::filesystem::remove(second);
  CHECK(all_contain(errors_of_loading(3, path, rule), "-1 is missing; "));
  // The file of another rank in its place: of all elements some are missing.
  std::filesystem::copy_file(shard_of(folder, "-0"), second);
  CHECK(all_contain(errors_of_loading(3, path, rule), "do not have all of the optimizer's state once"));
}

TEST_CASE_TEMPLATE("a whole state is refused if shard files have some elements twice and others not", E, float,
                   double) {
  const TemporaryFile file;
  const std::string& path = file.path;
  std::vector<E> values{1, 2, 3, 4};
  std::vector<E> read(4);
  const dtrain::ddp::ShardIndex index{.id = 42, .files = 2};
  const auto read_from = [&](std::size_t first, std::size_t second) {
    for (const std::size_t offset : {first, second}) {
      const std::string name = "dtrain.optimizer.state.w.exp_avg";
      const std::vector<dtrain::NamedTensor> part{{name, dtrain::tensor_view(std::span(values).subspan(offset, 2))}};
      dtrain::ddp::write_checkpoint_file(index.file_name(path, offset == first ? 0 : 1), part, {}, {},
                                         R"({")" + name + R"(":{"saved_offsets":[)" + std::to_string(offset) + "]}}");
    }
    dtrain::ddp::read_whole_state(path, index, {{"w"}, {"exp_avg"}, {{dtrain::buffer_view(std::span(read))}}});
  };
  read_from(2, 0);
  CHECK(read == values);
  for (const std::size_t second : {std::size_t{1}, std::size_t{2}}) {
    CHECK_ERROR(read_from(second - 1, second), Errc::protocol, "do not have all of the optimizer's state once");
  }
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a checkpoint that cannot be written is an error on every rank, and leaves the one before whole") {
  const optimizers::Adam rule;
  const Values expected = saved(2, path, rule, 3000);
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, rule};
    const auto refused = [&](const std::string& name) {
      CHECK_THROWS_AS(dtrain::save_checkpoint(group, name, dtrain::parameter_values(model.list), optimizer),
                      dtrain::Error);
    };
    refused(folder.path + "/none/state");
    // The last step fails: another process seems to be writing the file that names the others.
    if (group.rank() == 0) std::filesystem::create_directory(path + ".part");
    group.barrier();
    refused(path);
    if (group.rank() == 0) std::filesystem::remove(path + ".part");
  });
  CHECK(folder.files() == 3);
  CHECK(wrong_ranks(2, path, rule, 3000, expected) == 0);
}

TEST_CASE_FIXTURE(TemporaryFile, "a shard file whose digest is gone is refused") {
  saved(1, path, optimizers::AdamW{}, 0);
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(path).parent_path())) {
    if (file.path().string().find(".shard-") == std::string::npos) continue;
    std::ifstream content(file.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(content), {}};
    bytes.at(bytes.find("dtrain.sha256")) = 'X';
    std::ofstream(file.path(), std::ios::binary) << bytes;
  }
  CHECK_CONTAINS(errors_of_loading(1, path, optimizers::AdamW{}).at(0), "its metadata has no dtrain.sha256");
}

TEST_CASE_FIXTURE(TemporaryFile, "what a killed writer has left is removed by the next checkpoint") {
  std::ofstream(path + ".shard-00000000deadbeef-7") << "left";
  std::ofstream(path + ".shard-00000000deadbeef-8.part") << "left";
  const std::vector<std::string> others{path + "2.shard-00000000deadbeef-7", path + ".shard-notes",
                                        path + ".shard-00000000deadbeef-7.txt", path + ".shard-deadbeef-7",
                                        path + ".shard-00000000deadbeef-"};
  for (const std::string& other : others)
    std::ofstream(other) << "no shard of this checkpoint";
  saved(2, path, optimizers::Adam{}, 3000);
  CHECK(folder.files() == 3 + others.size());
  for (const std::string& other : others)
    CHECK(std::filesystem::exists(other));
}

TEST_CASE("a symbolic link to a checkpoint is followed, and the shard files are beside its target") {
  const TemporaryDirectory folder;
  const TemporaryDirectory target;
  const std::string path = target.path + "/state";
  const std::string link = folder.path + "/link";
  saved(2, path, optimizers::Adam{}, 3000);
  std::filesystem::create_symlink(path, link);
  const Values expected = saved(4, link, optimizers::Adam{}, 3000);
  CHECK(target.files() == 5);
  CHECK(folder.files() == 1);
  CHECK(wrong_ranks(2, path, optimizers::Adam{}, 3000, expected) == 0);
  CHECK(wrong_ranks(2, link, optimizers::Adam{}, 3000, expected) == 0);
}

TEST_CASE("any exception on one rank reaches all as an error") {
  run_well(3, [&](const Group& group) {
    const auto work = [&]() -> std::string {
      if (group.rank() == 1) throw std::length_error("too many elements");
      return "a text";
    };
    const auto run = [&] {
      static_cast<void>(
          dtrain::ddp::detail::run_on_all_ranks_blocking(*dtrain::group::handle_of(group), "writing", work));
    };
    CHECK_CONTAINS(sentence_of(run), "writing ended by too many elements");
    group.barrier();  // the job has not failed
  });
}

}  // namespace sharded_checkpoint_test
