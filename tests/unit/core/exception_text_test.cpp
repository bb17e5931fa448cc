#include "unit/core/prelude.hpp"

namespace {

std::string text_of(const std::string& what) {
  try {
    throw std::runtime_error(what);
  } catch (...) {
    return dtrain::exception_text();
  }
}

}  // namespace

TEST_CASE("the text of an exception is its message, of LibTorch's without the frames behind it") {
  CHECK(text_of("the loss\nis not a number") == "the loss\nis not a number");
  CHECK(text_of("mat1 and mat2 shapes cannot be multiplied (4x6 and 5x2)\nException raised from meta at "
                "../aten/src/ATen/native/LinearAlgebra.cpp:184 (most recent call first):\nframe #0: c10::Error") ==
        "mat1 and mat2 shapes cannot be multiplied (4x6 and 5x2)");
}
