// The other of two files of a program that both have all of dtrain.
#include <dtrain/dtrain.hpp>

#include "units.hpp"

std::vector<std::size_t> sizes_in_other_unit() {
  return sizes();
}

void throw_in_other_unit() {
  throw dtrain::Error(dtrain::Errc::usage, "thrown where other parts of dtrain are switched on");
}
