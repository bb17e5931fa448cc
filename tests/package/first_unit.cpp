// One of two files of a program that both have all of dtrain.
#include <dtrain/dtrain.hpp>

#include <cstdio>

#include "units.hpp"

int main() {
  if (sizes() != sizes_in_other_unit()) {
    std::fputs("a type has another size in the other file\n", stderr);
    return 1;
  }
  try {
    throw_in_other_unit();
  } catch (const dtrain::Error& error) {
    return error.code() == dtrain::Errc::usage ? 0 : 1;
  }
  return 1;
}
