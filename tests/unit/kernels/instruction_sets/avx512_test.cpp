// Says where the other tests of this folder could not test the kernels for AVX-512.

#include <doctest/doctest.h>

#include "dtrain/kernels/instruction_sets/isa.hpp"
#include "support/skip.hpp"

using dtrain::kernels::Isa;

TEST_CASE("this machine tests the kernels for AVX-512") {
  if (!dtrain::kernels::runs_on_this_machine(Isa::avx512)) {
    return dtrain_test::skip("this processor or its system lacks AVX-512 F, BW, VL and DQ");
  }
  CHECK((dtrain::kernels::best_isa() == Isa::avx512));
}
