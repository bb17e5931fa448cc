// ctest: TIMEOUT 120
// Bytes of any length in checkpoints: a library's own serialisation.
#include "dtrain/ddp/checkpoint/safetensors_header.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

/// A parameter, and bytes around it.
struct Solver {
  std::vector<float> weights = std::vector<float>(3);
  std::string text;
  std::string more;

  std::vector<dtrain::NamedTensor> state() {
    std::vector<dtrain::NamedTensor> list{dtrain::NamedBytes{"text", text}, {"weights", dtrain::tensor_view(weights)}};
    list.push_back(dtrain::NamedBytes{"more", more});
    return list;
  }
  bool operator==(const Solver&) const = default;
};

const Solver saved{{1, 2, 3}, std::string("a\0b", 3), std::string(100'000, 'x')};

/// Other lengths on every rank.
Solver other(int rank) {
  return {{7, 8, 9}, std::string(static_cast<std::size_t>(rank) * 50, 'o'), "short"};
}

/// The floats stay where they are, since a list has their address.
void set(Solver& solver, const Solver& to) {
  std::copy(to.weights.begin(), to.weights.end(), solver.weights.begin());
  solver.text = to.text;
  solver.more = to.more;
}

}  // namespace

TEST_CASE("bytes are loaded with the length of the file on every rank, whatever lengths the ranks had") {
  const support::TemporaryFile file;
  for (const int ranks : {1, 3}) {
    run_well(ranks, [&](const Group& group) {
      Solver solver = group.rank() == 0 ? saved : other(group.rank());  // rank 0's are written
      const std::vector<dtrain::NamedTensor> state = solver.state();
      dtrain::save_checkpoint(group, file.path, state);
      set(solver, other(group.rank()));
      CHECK(dtrain::load_checkpoint(group, file.path, state));
      CHECK(solver == saved);
      solver.text.clear();
      dtrain::save_checkpoint(group, file.path, state);  // the list is made once: it has the bytes' present length
      solver.text = "else";
      CHECK(dtrain::load_checkpoint(group, file.path, state));
      CHECK(solver.text.empty());
      CHECK(solver.more == saved.more);
    });
  }
}

TEST_CASE("an asynchronous checkpoint has the bytes of the call, and so has a sharded one") {
  const TemporaryDirectory folder;
  const std::string path = folder.path + "/state";
  const std::string sharded_path = folder.path + "/sharded";
  run_well(2, [&](const Group& group) {
    Solver solver = saved;
    const std::vector<dtrain::NamedTensor> state = solver.state();
    dtrain::PendingCheckpoint pending = dtrain::save_checkpoint_async(group, path, state);
    set(solver, other(group.rank()));
    pending.wait();
    CHECK(dtrain::load_checkpoint(group, path, state));
    CHECK(solver == saved);

    Model model({5, 2049});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    dtrain::save_checkpoint(group, sharded_path, state, optimizer);
    set(solver, other(group.rank()));
    CHECK(dtrain::load_checkpoint(group, sharded_path, state, optimizer));
    CHECK(solver == saved);
    pending = dtrain::save_checkpoint_async(group, sharded_path, state, optimizer);
    set(solver, other(group.rank()));
    pending.wait();
    CHECK(dtrain::load_checkpoint(group, sharded_path, state, optimizer));
    CHECK(solver == saved);
  });
}

TEST_CASE("a file with a tensor of numbers, or of too many bytes, is no file of these bytes, and changes nothing") {
  const support::TemporaryFile file;
  std::string bytes = "as before";
  const std::vector<dtrain::NamedTensor> wanted{dtrain::NamedBytes{"solver", bytes}};
  std::vector<float> numbers(4);
  const std::vector<dtrain::NamedTensor> tensor{{"solver", dtrain::tensor_view(numbers)}};
  dtrain::ddp::write_checkpoint_file(file.path, tensor);
  CHECK_THROWS_WITH_AS(dtrain::ddp::read_checkpoint_file(file.path, wanted),
                       doctest::Contains("its tensor 'solver' is f32 [4], the program's is u8 with one extent"),
                       dtrain::Error);

  const std::int64_t many = (std::int64_t{1} << 32) + 1;
  const std::vector<dtrain::ddp::ParameterSignature> list{{"solver", {many}, dtrain::DType::u8, {}}};
  const std::string header =
      dtrain::ddp::safetensors_header(dtrain::ddp::file_tensors(list), std::vector<std::size_t>{0});
  std::ofstream(file.path, std::ios::binary) << header;
  std::filesystem::resize_file(file.path, header.size() + static_cast<std::uintmax_t>(many));  // sparse
  CHECK_THROWS_WITH_AS(dtrain::ddp::read_checkpoint_file(file.path, wanted),
                       doctest::Contains("has 4294967297 bytes, and at most 4294967296 are read"), dtrain::Error);
  CHECK(bytes == "as before");
}

TEST_CASE("a rank that has a tensor in the place of bytes is told on every rank") {
  const TemporaryDirectory folder;
  expect_ends(2, {"'solver'"}, [&](const Group& group) {
    std::string bytes = "bytes";
    std::vector<std::uint8_t> numbers(5);
    std::vector<dtrain::NamedTensor> state{dtrain::NamedBytes{"solver", bytes}};
    if (group.rank() == 1) state = {{"solver", dtrain::tensor_view(numbers)}};
    static_cast<void>(dtrain::load_checkpoint(group, folder.path + "/none", state));
  });
}
