// Programs have macros whose names are dtrain's template parameters, members or variables. All of dtrain is included
// behind them here, and they are as they were afterwards. The #if below has this file compiled alone.
#define A 1
#define B 2
#define C 3
#define D 4
#define E 2.718281828
#define F 6
#define G 7
#define H 8
#define I 9
#define J 10
#define K 11
#define L 12
#define M 13
#define N 1000
#define O 15
#define P 16
#define Q 17
#define R 18
#define S 19
#define T 3.5
#define U 21
#define V 22
#define W 23
#define X 24
#define Y 25
#define Z 26
// Qt's
#define emit
#define foreach(one, all) for (one : all)
#define forever for (;;)
#define signals public
#define slots
// Xlib's
#define Always 2
#define Bool int
#define None 0L
#define Status int
#define Success 0
// and what else there is
#define check(condition) \
  if (!(condition)) return 1
#define DEBUG 1
#define ERROR 2
#define far
#define interface struct
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define near
#define small char
#define FALSE 0
#define TRUE 1

#include "dtrain/dtrain.hpp"

#if N != 1000 || Z != 26 || None != 0 || min(2, 1) != 1 || max(2, 1) != 2
#error "dtrain: a macro is not what it was"
#endif

namespace {

constexpr double e = E;
constexpr double t = T;
Status status_of(small letter) {
  check(letter == 's');
  return Success;
}

}  // namespace

#undef A
#undef B
#undef C
#undef D
#undef E
#undef F
#undef G
#undef H
#undef I
#undef J
#undef K
#undef L
#undef M
#undef N
#undef O
#undef P
#undef Q
#undef R
#undef S
#undef T
#undef U
#undef V
#undef W
#undef X
#undef Y
#undef Z
#undef emit
#undef foreach
#undef forever
#undef signals
#undef slots
#undef Always
#undef Bool
#undef None
#undef Status
#undef Success
#undef check
#undef DEBUG
#undef ERROR
#undef far
#undef interface
#undef max
#undef min
#undef near
#undef small
#undef FALSE
#undef TRUE

#include <doctest/doctest.h>

TEST_CASE("the macros that a program has are as they were behind dtrain.hpp, which is what it is without them") {
  CHECK(e == 2.718281828);
  CHECK(t == 3.5);
  CHECK(status_of('s') == 0);
  CHECK(status_of('x') == 1);
  CHECK(dtrain::size_bytes(dtrain::dtype_of<double>::value) == 8);
}
