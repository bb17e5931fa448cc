// A text has one place for each value: another count does not compile.
// expect: not one {} for each value
#include "dtrain/core/text/format_text.hpp"

std::string sentence(int rank, int size) {
#ifdef DTRAIN_COMPILE_FAIL
  return dtrain::format_text("rank {}", {rank, size});
#else
  return dtrain::format_text("rank {} of {}", {rank, size});
#endif
}
