// The same program compiled with other flags gives the same bits.

#include "integration/prelude.hpp"

TEST_CASE("no optimisation and no -ffast-math, -mfma or -march=native changes a bit of what the kernels give") {
  const std::string programs = DTRAIN_TEST_PROGRAMS_DIR "/kernel_bits_";
  const support::Result plain = support::run(programs + "O2", {});
  support::check_printed(plain, {"bf16 average baseline "});
  for (const std::string flags : {"O0", "O3_fast", "O3_fast_native"}) {
    CAPTURE(flags);
    const support::Result other = support::run(programs + flags, {});
    CHECK(other.exit_code == 0);
    CHECK(other.output == plain.output);
  }
}
