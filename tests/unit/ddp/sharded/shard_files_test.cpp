#include "dtrain/ddp/sharded/shard_files.hpp"

#include <map>

#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"
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
    return {parameters,
            plan,
            rank,
            ranks,
            StateArrays::of<Rule>(),
            ShardedParameters::Rule::of<Rule>(std::make_shared<const Rule>())};
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
    const ShardContent content = shard_content(shares, rank, 3);
    write_checkpoint_file(index.file_name(path, rank), content.tensors, {}, {}, content.sharding);
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

TEST_CASE("each file has one part of a parameter's state at most, and all files together have all of it once") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < 1 + random() % 6; ++i)
      sizes.push_back(static_cast<std::int64_t>(random() % 3 == 0 ? random() % 20 : random() % 3000));
    sizes.push_back(1);
    const Model model(sizes);
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::map<std::string, std::vector<std::pair<std::uint64_t, std::uint64_t>>> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      ShardedParameters shares = model.shares(rank, ranks);
      const ShardContent content = shard_content(shares, rank, ranks);
      const auto first = dtrain::ddp::parse_sharding(content.sharding);
      REQUIRE(first);
      std::map<std::string, std::uint64_t> counts;
      for (const dtrain::NamedTensor& tensor : content.tensors)
        CHECK(counts.emplace(tensor.name, tensor.value.shape.element_count()).second);
      CHECK(first->size() == counts.size());
      for (const auto& [name, offset] : *first)
        parts[name].emplace_back(offset, counts.at(name));
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      auto& all = parts["dtrain.optimizer.state.p" + std::to_string(i + 1) + ".momentum_buffer"];
      std::sort(all.begin(), all.end());
      std::uint64_t end = 0;
      for (const auto& [offset, count] : all) {
        CHECK(offset == end);
        end += count;
      }
      CHECK(end == static_cast<std::uint64_t>(sizes[i]));
    }
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "a shard file with anything but parts of this optimizer's state is refused") {
  const Model model({4});
  ShardIndex index = ShardIndex::of(model.shares(0, 1));
  index.files = 1;
  std::vector<float> values(5);
  const auto load = [&](const std::string& name, std::size_t count, const std::string& sharding) {
    const std::vector<dtrain::NamedTensor> part{{name, tensor_view(std::span(values).first(count))}};
    write_checkpoint_file(index.file_name(path, 0), part, {}, {}, sharding);
    ShardedParameters shares = model.shares(0, 1);
    read_shard_files(path, index, shares, 0, 1);
  };
  const std::string name = "dtrain.optimizer.state.p1.momentum_buffer";
  const auto at = [&](const std::string& offsets) { return "{\"" + name + "\":{\"saved_offsets\":" + offsets + "}}"; };
  CHECK_NOTHROW(load(name, 4, at("[0]")));
  CHECK_ERROR(load(name, 3, at("[1]")), Errc::protocol, "do not have all of the optimizer's state once");
  for (const std::string& sharding : {at("[1]"), at("[4]"), at("[18446744073709551615]"), at("[-1]"), at("[0, 0]"),
                                      at("[]"), at("0"), std::string("{}"), std::string("{"), std::string()}) {
    CAPTURE(sharding);
    CHECK_ERROR(load(name, 4, sharding), Errc::protocol, "is no state of this optimizer; load another checkpoint");
  }
  CHECK_ERROR(load(name, 5, at("[0]")), Errc::protocol, "is no state of this optimizer");
  CHECK_ERROR(load("dtrain.optimizer.state.p1.exp_avg", 4, at("[0]")), Errc::protocol, "is no state of this optimizer");
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
