// Checkpoints that a thread writes: they have the values of the call, their errors reach every rank in wait(), and a
// training goes on meanwhile.

#include <sys/syscall.h>

#include "support/denied_call.hpp"
#include "support/in_child.hpp"
#include "support/skip.hpp"
#include "unit/public_interface/prelude.hpp"

using dtrain::PendingCheckpoint;
using whole_optimizer::backward;

namespace async_checkpoint_test {

const std::vector<std::size_t> sizes{5, 2049, 0, 700, 17, 31};

void fill(Model& model, float value) {
  for (std::vector<float>& values : model.values)
    values.assign(values.size(), value);
}

TEST_CASE("a snapshot has copies of the elements, with the same names and shapes") {
  std::vector<float> weights{1, 2, 3, 4};
  std::int64_t steps = 7;
  const std::vector<dtrain::NamedTensor> tensors{{"weights", dtrain::tensor_view(weights.data(), {2, 2})},
                                                 {"none", dtrain::tensor_view(weights.data(), {0})},
                                                 {"steps", dtrain::tensor_view(&steps, {})}};
  const dtrain::ddp::TensorSnapshot snapshot(tensors);
  weights.assign(4, 0);
  steps = 0;
  const std::vector<dtrain::NamedTensor>& copies = snapshot.tensors();
  REQUIRE(copies.size() == 3);
  CHECK(copies[0].name == "weights");
  CHECK(copies[0].value.shape == tensors[0].value.shape);
  CHECK(copies[0].value.as<float>()[3] == 4);
  CHECK(copies[1].value.bytes() == 0);
  CHECK(copies[2].name == "steps");
  CHECK(copies[2].value.as<std::int64_t>()[0] == 7);
  CHECK(dtrain::ddp::TensorSnapshot().tensors().empty());
}

TEST_CASE("the file has the values of the call, also if they change before wait(), or if nobody waits") {
  const TemporaryDirectory folder;
  run_well(3, [&](const Group& group) {
    Model model(sizes);
    PendingCheckpoint pending;
    pending.wait();  // nothing to wait for
    for (const float value : {1.0F, 2.0F}) {
      const std::string path = folder.path + "/state" + std::to_string(static_cast<int>(value));
      fill(model, value);
      pending = dtrain::save_checkpoint_async(group, path, dtrain::parameter_values(model.list));
      fill(model, -1);
      if (value == 1) pending.wait();
    }
    PendingCheckpoint moved = std::move(pending);
    pending.wait();  // NOLINT: a moved-from one has nothing to wait for
    moved = PendingCheckpoint();
    group.barrier();
    for (const float value : {1.0F, 2.0F}) {
      const std::string path = folder.path + "/state" + std::to_string(static_cast<int>(value));
      CHECK(dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list)));
      CHECK(model.all_are(value));
    }
  });
  CHECK(folder.files() == 2);
}

namespace {

/// Begins two checkpoints, the second one with an optimizer's state, and checks that wait() throws an error with `text`
/// on each of `ranks` ranks for both. @param spoil changes what a rank saves
void check_errors_in_wait(int ranks, const std::string& path, const char* text,
                          const std::function<void(const Group&, std::vector<dtrain::NamedTensor>&)>& spoil) {
  Sentences plain;
  Sentences sharded;
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::Adam{}};
    std::vector<dtrain::NamedTensor> tensors = dtrain::parameter_values(model.list);
    spoil(group, tensors);
    PendingCheckpoint first = dtrain::save_checkpoint_async(group, path, tensors);
    plain.note([&] { first.wait(); });
    first.wait();  // the error was reported
    PendingCheckpoint second = dtrain::save_checkpoint_async(group, path, tensors, optimizer);
    sharded.note([&] { second.wait(); });
    group.barrier();
  });
  const auto count = static_cast<std::size_t>(ranks);
  CHECK(plain.all_say(count, text));
  CHECK(sharded.all_say(count, text));
}

}  // namespace

TEST_CASE("a checkpoint that cannot be written is an error on every rank in wait(), and the job goes on") {
  const TemporaryDirectory folder;
  check_errors_in_wait(3, folder.path + "/none/state", "/none/state", [](const Group&, auto&) {});
  CHECK(folder.files() == 0);
}

TEST_CASE("a checkpoint that rank 0 cannot copy is an error on every rank in wait(), and the job goes on") {
  const TemporaryDirectory folder;
  check_errors_in_wait(2, folder.path + "/state", "tensor 0 of a checkpoint is on cuda:0",
                       [](const Group& group, std::vector<dtrain::NamedTensor>& tensors) {
                         // the group is on the host
                         if (group.rank() == 0) tensors.front().value.device = {dtrain::DeviceKind::cuda, 0};
                       });
  CHECK(folder.files() == 0);
}

TEST_CASE("a thread that the system cannot start is an error in wait(), not where a checkpoint is begun") {
  const int code = support::in_child([] {
    for (const long number : {SYS_clone, SYS_clone3}) {
      if (!support::deny_call(number, EAGAIN)) return 77;
    }
    PendingCheckpoint pending([] {}, [](const std::function<void()>& require_written) { require_written(); }, {});
    try {
      pending.wait();
      return 1;
    } catch (const dtrain::Error& error) {
      return std::string(error.what()).starts_with("starting a thread to write a checkpoint: ") ? 0 : 2;
    }
  });
  if (code == 77) return dtrain_test::skip("this machine installs no seccomp filter");
  CHECK(code == 0);
}

/// Five steps, with a checkpoint before the fourth that is written meanwhile. @returns the weights at the end
std::vector<std::vector<float>> trained(int ranks, const std::string& path, bool waits) {
  std::vector<std::vector<float>> end;
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::Adam{.rate = 0.01F}};
    PendingCheckpoint pending;
    for (int number = 0; number < 5; ++number) {
      if (number == 3)
        pending = dtrain::save_checkpoint_async(group, path, dtrain::parameter_values(model.list), optimizer);
      ddp.backward(backward(model, number, 0), optimizer);
    }
    if (waits) pending.wait();
    if (group.rank() == 0) end = model.values;
  });
  return end;
}

/// The weights after the last two steps, from the checkpoint.
std::vector<std::vector<float>> resumed(int ranks, const std::string& path) {
  std::vector<std::vector<float>> end;
  run_well(ranks, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::Adam{.rate = 0.01F}};
    CHECK(dtrain::load_checkpoint(group, path, dtrain::parameter_values(model.list), optimizer));
    CHECK(optimizer.steps() == 3);
    for (int number = 3; number < 5; ++number)
      ddp.backward(backward(model, number, 0), optimizer);
    if (group.rank() == 0) end = model.values;
  });
  return end;
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "a sharded optimizer is saved while the training goes on, and resumes to the bit on other ranks") {
  const std::vector<std::vector<float>> expected = trained(2, path, true);
  CHECK(folder.files() == 3);
  CHECK(resumed(4, path) == expected);
  // Without wait() it is not known that every share is written: the checkpoint before stays.
  trained(4, path, false);
  CHECK(folder.files() == 3);
  CHECK(resumed(2, path) == expected);
}

TEST_CASE("pending checkpoints that ranks wait for in another order are an error on every rank, and replace nothing") {
  const TemporaryDirectory folder;
  Sentences first;
  Sentences second;
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}};
    const auto values = dtrain::parameter_values(model.list);
    const std::string one = folder.path + "/one";
    fill(model, 1);
    dtrain::save_checkpoint(group, one, values, optimizer);
    fill(model, 2);
    PendingCheckpoint of_one = dtrain::save_checkpoint_async(group, one, values, optimizer);
    PendingCheckpoint of_two = dtrain::save_checkpoint_async(group, folder.path + "/two", values, optimizer);
    first.note([&] { (group.rank() == 0 ? of_one : of_two).wait(); });
    second.note([&] { (group.rank() == 0 ? of_two : of_one).wait(); });
    CHECK(dtrain::load_checkpoint(group, one, values, optimizer));
    CHECK(model.all_are(1));
    CHECK_FALSE(dtrain::load_checkpoint(group, folder.path + "/two", values, optimizer));
  });
  CHECK(first.all_say(2, "wait for pending checkpoints in the same order"));
  CHECK(second.all_say(2, "wait for pending checkpoints in the same order"));
  CHECK(folder.files() == 3);
}

TEST_CASE("ranks that give an asynchronous checkpoint different names are told on every rank") {
  const TemporaryDirectory folder;
  Sentences plain;
  Sentences sharded;
  run_well(3, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}};
    const auto values = dtrain::parameter_values(model.list);
    const std::string own = folder.path + "/m." + std::to_string(group.rank());
    PendingCheckpoint pending = dtrain::save_checkpoint_async(group, own, values);
    plain.note([&] { pending.wait(); });
    sharded.note([&] { pending = dtrain::save_checkpoint_async(group, own, values, optimizer); });
    pending.wait();
    group.barrier();
  });
  CHECK(plain.all_say(3, "rank 0 is writing the file " + folder.path + "/m.0, but rank 1 is writing the file " +
                             folder.path + "/m.1; give the same name on every rank"));
  CHECK(sharded.all_say(3, "/m.1; give the same name on every rank"));
}

}  // namespace async_checkpoint_test
