// A job over Gloo that does what its argument says; tests/integration/gloo_test.cpp starts it.
//   gloo_probe --nproc-per-node=3 hello|crossed|kill|throw|other_count|leave|stop|endless
#include "programs/prelude.hpp"
#if DTRAIN_WITH_GLOO

#include <signal.h>

#include <string_view>

#include "support/crossed_channels.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo>;
using Group = dtrain::ProcessGroup<Policy>;

int hello(const Group& group) {
  double sum = group.rank();
  group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
  const Group half = group.split(group.rank() % 2, group.rank());
  double part = 1;
  half.all_reduce(std::span(&part, 1), dtrain::ReduceOp::sum);
  std::printf("rank %d of %d: sum %.0f, half %.0f\n", group.rank(), group.world_size(), sum, part);
  return 0;
}

int crossed(const Group& group) {
  bool right = true;
  for (const auto& [name, crossing] : support::crossings) {
    for (const auto progress : {dtrain::stream::host::Progress::caller, dtrain::stream::host::Progress::thread})
      right = support::train_crossed(group, crossing, progress, 30'000, 2) && right;
  }
  std::puts(right ? "all right" : "wrong");
  return right ? 0 : 3;
}

/// Reduces without end, and says "phase steady" on the way; rank 1 ends in the middle of it as told.
int endless(const Group& group, std::string_view how) {
  std::vector<float> values(1'000'000, 1);
  for (int step = 0;; ++step) {
    if (step == 10) {
      static_cast<void>(::dprintf(STDOUT_FILENO, "phase steady\n"));
    }
    if (step == 10 && group.rank() == 1) {
      if (how == "kill") {
        static_cast<void>(::kill(::getpid(), SIGKILL));
      } else if (how == "throw") {
        throw std::runtime_error("rank 1 has had enough");
      } else if (how == "other_count") {
        values.resize(999'999);
      } else if (how == "leave") {
        return 0;
      } else if (how == "stop") {
        static_cast<void>(::kill(::getpid(), SIGSTOP));
      }
    }
    group.all_reduce(std::span(values), dtrain::ReduceOp::average);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    const std::string_view what = arguments.size() > 1 ? arguments[1] : "hello";
    return what == "hello" ? hello(group) : what == "crossed" ? crossed(group) : endless(group, what);
  });
}

#else

int main() {
  std::puts("built without Gloo");
  return 77;
}
#endif
