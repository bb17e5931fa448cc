// A worker that meets a limit of its process, as its argument says.
//   limits_probe --nproc-per-node=2 [none | memory | signal | lines]

#include <cstddef>
#include <memory>
#include <string_view>
#include "programs/prelude.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int meet_limit(const dtrain::ProcessGroup<Policy>& group, std::string_view what) {
  group.barrier();
  if (what == "memory" && group.rank() == 0) {
    const std::unique_ptr<std::byte[]> much(new std::byte[std::size_t{1} << 40]);
    return much[0] == std::byte{1} ? 3 : 0;
  }
  if (what == "signal" && group.rank() == 0) {
    static_cast<void>(std::raise(SIGXFSZ));
  }
  if (what == "lines") {
    const std::string line(1000, static_cast<char>('a' + group.rank()));
    for (int i = 0; i < 8000; ++i)
      std::printf("%s\n", line.c_str());
  }
  group.barrier();
  std::printf("rank %d is well\n", group.rank());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    return meet_limit(group, arguments.size() > 1 ? arguments[1] : "none");
  });
}
