#include <barrier>

#include "unit/backend/prelude.hpp"

namespace {

constexpr std::size_t count = std::size_t{4} << 20;
constexpr int rounds = 32;

}  // namespace

TEST_CASE("a reduction in place that an abort cuts short is taken for whole by nobody") {
  std::atomic<std::chrono::nanoseconds::rep> whole{0};  // how long it takes undisturbed, in the first round
  for (int round = 0; round < rounds; ++round) {
    std::atomic<bool> taken_for_whole{false};
    std::barrier start_line(2);
    support::run_ranks<support::HostRank<dtrain::backend::SharedMemory>>(
        2, [&](support::HostRank<dtrain::backend::SharedMemory>& self, support::RankThread& thread) {
          const auto memory = self.communicator.allocate_blocking(count * sizeof(float), dtrain::Deadline::after(60s));
          const std::span<float> values(reinterpret_cast<float*>(memory.data()), count);
          std::fill(values.begin(), values.end(), 1.0F);
          thread.doing("waiting for the other rank");
          start_line
              .arrive_and_wait();  // no collective: the abort may come before the slower rank has looked at its end
          thread.doing("reducing");

          const auto start = std::chrono::steady_clock::now();
          std::jthread aborter;
          if (thread.rank() == 0 && round > 0) {
            aborter = std::jthread([&, until = start + std::chrono::nanoseconds(whole.load() * round / rounds)] {
              std::this_thread::sleep_until(until);
              self.communicator.abort({dtrain::CauseKind::exception, 0, "here", "enough"});
            });
          }
          self.communicator.enqueue(dtrain::backend::AllReduce{dtrain::buffer_view(values), dtrain::buffer_view(values),
                                                               dtrain::ReduceOp::sum},
                                    self.stream.ref());
          const bool serves = self.wait();
          if (thread.rank() == 0 && round == 0) {
            whole = std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
          }
          if (thread.rank() == 1 && serves && std::count(values.begin(), values.end(), 2.0F) != count) {
            taken_for_whole = true;
          }
        });
    CHECK_FALSE(taken_for_whole);
  }
}
