#include "support/allocation_count.hpp"
#include "unit/ddp/prelude.hpp"

TEST_CASE("a steady step allocates nothing, bound or not") {
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    FakeRank rank(std::vector<std::size_t>(50, 30), {512, 1024});
    if (bound) rank.bind_all();
    const auto one_step = [&rank] {
      rank.stream.forget_completed();
      rank.channel->launches.clear();
      Step step = rank.reducer->begin();
      const dtrain::Ready ready = step.ready();
      for (std::size_t i = 50; i-- > 0;)
        ready(i);
      step.finish();
    };
    one_step();
    const std::size_t before = support::allocations.load();
    for (int repeat = 0; repeat < 100; ++repeat)
      one_step();
    CHECK(support::allocations.load() == before);
    const auto probe = std::make_unique<int>(1);
    CHECK(support::allocations.load() > before);  // the count counts
  }
}
