// The standard is checked before the first header that needs it.
// fails as: c++17
// expect: dtrain: C++20 is needed; compile with -std=c++20
// expect: dtrain needs -std=c++20
#include "dtrain/dtrain.hpp"

dtrain::Shape shape;
