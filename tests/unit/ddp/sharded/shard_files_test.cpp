#include "dtrain/ddp/sharded/shard_files.hpp"

#include "dtrain/ddp/sharded/optimizers.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "unit/ddp/prelude.hpp"

namespace shard_files_test {

/// A model of one parameter of each size, whose state is cut into shares of any number of ranks.
struct Model {
  explicit Model(const std::vector<std::int64_t>& sizes, DType dtype = DType::f32) {
    for (const std::int64_t size : sizes) {
      values.emplace_back(static_cast<std::size_t>(size) * dtrain::size_bytes(dtype));
      const dtrain::TensorView view{values.back().data(), {size}, dtype, {}};
      parameters.push_back({"p" + std::to_string(values.size()), view, view});
    }
    plan = plan_buckets(gradient_sizes(parameters), {0, 0});
  }

  ShardedParameters shares(int rank, int ranks) const {
    using Rule = dtrain::optimizers::Momentum;
    return {parameters, plan, rank, ranks, 1, ShardedParameters::Rule::of<Rule>(std::make_shared<const Rule>())};
  }

  std::vector<std::vector<std::byte>> values;
  std::vector<Parameter> parameters;
  BucketPlan plan;
};

/// Writes the files of three ranks.
ShardIndex save(const Model& model, const std::string& path) {
  ShardIndex index = ShardIndex::of(model.shares(0, 3));
  index.id = 42;
  index.files = 3;
  for (int rank = 0; rank < 3; ++rank) {
    ShardedParameters shares = model.shares(rank, 3);
    write_checkpoint_file(index.file_name(path, rank), shard_entries(shares, rank));
  }
  return index;
}

TEST_CASE_FIXTURE(TemporaryFile, "the ranks of a load check the digests of all shard files, each file on one rank") {
  const Model model({1000, 3});
  const ShardIndex index = save(model, path);
  const auto load = [&](int rank) {
    ShardedParameters shares = model.shares(rank, 2);
    read_shard_files(path, index, shares, rank, 2);
  };
  for (int file = 0; file < 3; ++file) {
    CAPTURE(file);
    const auto flip_bit = [name = index.file_name(path, file)] {
      std::fstream stream(name, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(-200, std::ios::end);  // in a tensor
      const auto byte = static_cast<char>(stream.get() ^ 1);
      stream.seekp(-200, std::ios::end);
      stream.put(byte);
    };
    flip_bit();
    CHECK_ERROR(load(file % 2), Errc::protocol, "does not have the digest");
    CHECK_NOTHROW(load(1 - file % 2));
    flip_bit();
    CHECK_NOTHROW(load(file % 2));
  }
}

TEST_CASE("the index of shard files tells apart names, shapes and types of parameters, and numbers of states") {
  const auto model_of = [](const Model& model) { return ShardIndex::of(model.shares(0, 1)).model; };
  const Model half({8, 3}, DType::f16);
  CHECK(model_of(half) == model_of(Model({8, 3}, DType::f16)));
  CHECK(model_of(half) != model_of(Model({8, 3}, DType::bf16)));
  CHECK(model_of(half) != model_of(Model({8, 3})));
  CHECK(model_of(half) != model_of(Model({8, 4}, DType::f16)));
  Model renamed({8, 3}, DType::f16);
  renamed.parameters[1].name = "q";
  CHECK(model_of(half) != model_of(renamed));
}

TEST_CASE("the name of an entry is that which a save writes, and no other") {
  const auto entry = dtrain::ddp::detail::parse_entry_name("state 1 of parameter 3 from 4096");
  REQUIRE(entry);
  CHECK(entry->array == 1);
  CHECK(entry->parameter == 3);
  CHECK(entry->offset == 4096);
  for (const char* const other :
       {"state 01 of parameter 3 from 4096", "state 1 of parameter 3 from 04096", "state 1 of parameter 3 from 4096 ",
        "state 1 of parameter 3 from ", "state 1 of parameter -3 from 4096", "state 1 of parameter 3", "",
        "a state 1 of parameter 3 from 4096", "state 1 of parameter 3 from 18446744073709551616"}) {
    CAPTURE(other);
    CHECK_FALSE(dtrain::ddp::detail::parse_entry_name(other));
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "the shard files of a checkpoint are those that a writer of any attempt may leave") {
  const std::string name = path + ".shard-00000000deadbeef-7";
  const std::set<std::string> shards{name, name + ".part", name + ".part.attempt-3"};
  const std::set<std::string> others{name + ".txt", name + ".partial", name + ".attempt-3",
                                     path + ".shard-00000000deadbeef-", path + ".shard-notes"};
  for (const auto& names : {shards, others}) {
    for (const std::string& each : names)
      std::ofstream(each) << "content";
  }
  const std::vector<std::string> found = dtrain::ddp::detail::shard_file_names(path, "");
  CHECK(std::set<std::string>(found.begin(), found.end()) == shards);
}

/// Loads a checkpoint whose shard files are missing while its id is one of `ids`, one after the other.
bool load_after(const std::vector<std::int64_t>& ids, std::size_t& loads) {
  loads = 0;
  return dtrain::ddp::detail::load_past_replacement([&](ShardIndex& index) {
    if (loads == ids.size()) return true;
    index.id = ids[loads++];
    throw Error(std::make_error_code(std::errc::no_such_file_or_directory), "shard file 0 is missing");
    return false;
  });
}

TEST_CASE("a checkpoint is loaded again as long as another one replaces it, and once more if it stays the same") {
  std::size_t loads = 0;
  CHECK(load_after({}, loads));
  CHECK(load_after({5}, loads));
  CHECK(load_after({5, 6, 7, 8}, loads));
  CHECK_ERROR(load_after({5, 6, 6, 7}, loads), Errc::protocol, "shard file 0 is missing");
  CHECK(loads == 3);
  std::vector<std::int64_t> many(200);
  std::iota(many.begin(), many.end(), 1);
  CHECK_ERROR(load_after(many, loads), Errc::protocol, "shard file 0 is missing");
  CHECK(loads == 100);
}

}  // namespace shard_files_test
