// Two wrappers of each rank, and the group's collectives, in different orders on different ranks (see
// support/crossed_channels.hpp).
//   crossed_channels --nproc-per-node=2 CROSSING caller|thread ELEMENTS
// Each rank prints "rank R: right" or "rank R: wrong".

#include "support/crossed_channels.hpp"

#include "programs/prelude.hpp"

int main(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    if (arguments.size() != 4) return 2;
    for (const auto& [name, crossing] : support::crossings) {
      if (std::string(arguments[1]) == name) {
        const bool right = support::train_crossed(group, crossing, dtrain::stream::host::progress_from(arguments[2]),
                                                  static_cast<std::size_t>(std::atol(arguments[3])));
        std::printf("rank %d: %s\n", group.rank(), right ? "right" : "wrong");
        return right ? 0 : 3;
      }
    }
    return 2;
  });
}
