// ctest: TIMEOUT 240
// Ranks as threads, one or two of which are lost at each of the points of rank_loss.hpp: the others and the
// replacements train on as if nothing had happened.
//   DTRAIN_TEST_RANK_LOSSES=300 DTRAIN_TEST_ELASTIC_SEED=1 unit_elastic --source-file='*rank_loss*'   so many, or "all"
//   DTRAIN_TEST_RANK_LOSS=17 unit_elastic --source-file='*rank_loss*'                                 one case

#include "unit/elastic/rank_loss.hpp"

#include <numeric>
#include <random>

#include "unit/elastic/prelude.hpp"

namespace {

std::size_t setting(const char* name, std::size_t otherwise) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return otherwise;
  return std::string(value) == "all" ? rank_loss::Case::count : std::stoull(value);
}

/// The numbers of so many cases, in an order of their own: all of them, if there are no more.
std::vector<std::size_t> sample(std::size_t count, std::size_t seed) {
  std::vector<std::size_t> found(rank_loss::Case::count);
  std::iota(found.begin(), found.end(), std::size_t{0});
  std::shuffle(found.begin(), found.end(), std::mt19937(static_cast<unsigned>(seed)));
  found.resize(std::min(count, found.size()));
  return found;
}

}  // namespace

TEST_CASE("ranks that are lost at any point, one after the other, lose, repeat and fork no step") {
  const std::size_t seed = setting("DTRAIN_TEST_ELASTIC_SEED", 1);
  const std::size_t one = setting("DTRAIN_TEST_RANK_LOSS", rank_loss::Case::count);
  const std::vector<std::size_t> cases = one < rank_loss::Case::count
                                             ? std::vector<std::size_t>{one}
                                             : sample(setting("DTRAIN_TEST_RANK_LOSSES", 200), seed);
  MESSAGE(cases.size() << " of " << rank_loss::Case::count << " cases, seed " << seed);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::string problems;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {  // some cases wait
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < cases.size(); at = next++) {
        const auto of = rank_loss::Case::at(cases[at]);
        const std::string problem = rank_loss::run(of);
        const std::lock_guard lock(mutex);
        if (!problem.empty()) problems += of.text() + ": " + problem + "\n";
      }
    });
  }
  for (std::thread& each : threads) {
    each.join();
  }
  CHECK(problems == "");
}
