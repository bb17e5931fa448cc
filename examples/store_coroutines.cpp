// Ranks share out a list of work through the job's store, in coroutines on the control loop.
//   store_coroutines --nproc-per-node=4

#include <chrono>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
using Group = dtrain::ProcessGroup<Policy>;
using dtrain::Task;

constexpr int pieces = 12;

/// The first rank that comes writes the list; the others find it there.
Task<std::string> leader_of(Group group) {
  const auto store = group.store();
  const auto result = co_await store.compare_set("leader", std::nullopt, std::to_string(group.rank()));
  if (result.swapped) {
    std::vector<std::pair<std::string, std::string>> list = {{"work/first", "0"}, {"work/end", std::to_string(pieces)}};
    co_await store.set_many(std::move(list));
  }
  co_return result.now.value_or("nobody");
}

/// Takes pieces until none is left, and notes each in the list of all that were done. @returns how many it took
Task<int> work(Group group) {
  const auto deadline = dtrain::Deadline::after(std::chrono::seconds(30));
  std::vector<std::string> keys = {"work/first", "work/end"};
  const std::vector<std::string> range = co_await group.store().get_many(std::move(keys), deadline);
  for (int taken = 0;; ++taken) {
    const auto piece = std::stoi(range[0]) - 1 + co_await group.store().add("work/taken", 1, deadline);
    if (piece >= std::stoi(range[1])) {
      co_return taken;
    }
    co_await group.store().append("work/done", std::to_string(piece) + " ", deadline);
  }
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group) {
    // In the background: says on this rank's control thread that it is alive, until `alive` is destroyed.
    const auto alive = group.spawn([&](dtrain::async::EventLoop& loop) -> Task<> {
      for (;;) {
        co_await group.store().add("alive/" + std::to_string(group.rank()), 1);
        co_await loop.sleep_for(std::chrono::milliseconds(100));
      }
    });
    const std::string leader = group.run([&] { return leader_of(group); });
    const int taken = group.run([&] { return work(group); });
    const std::string done = group.run([&]() -> Task<std::string> {
      co_await group.store().barrier("all done");
      std::string list = co_await group.store().get("work/done");
      co_return std::move(list);
    });
    int count = 0;
    for (const char each : done) {
      count += each == ' ' ? 1 : 0;
    }
    std::printf("rank %d: rank %s wrote the list; took %d, all %d\n", group.rank(), leader.c_str(), taken, count);
    return 0;
  });
}
