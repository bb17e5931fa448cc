#include "dtrain/kernels/instruction_sets/isa.hpp"

#include <sstream>

#include "unit/kernels/prelude.hpp"

TEST_CASE("every machine runs the baseline, and every instruction set up to its best") {
  CHECK(dtrain::kernels::runs_on_this_machine(Isa::baseline));
  CHECK(dtrain::kernels::runs_on_this_machine(dtrain::kernels::best_isa()));
  CHECK((dtrain::kernels::runs_on_this_machine(Isa::avx2) == (dtrain::kernels::best_isa() >= Isa::avx2)));
}

TEST_CASE("the processor is known as the kernel knows it") {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0) {
      flags = line + " ";
      break;
    }
  }
  if (flags.empty()) return dtrain_test::skip("/proc/cpuinfo names no flags");
  const auto has = [&](const std::string& all) {
    std::istringstream words(all);
    for (std::string word; words >> word;) {
      if (flags.find(" " + word + " ") == std::string::npos) return false;
    }
    return true;
  };
  CHECK((dtrain::kernels::runs_on_this_machine(Isa::avx2) == has("avx avx2 f16c")));
}
