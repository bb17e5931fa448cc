// C libraries for old compilers (kautodiff.h) define inline away: dtrain behind them ends with one sentence.
// expect: defines the keyword inline as a macro; include dtrain before that header
#ifdef DTRAIN_COMPILE_FAIL
#define inline
#endif
#include "dtrain/core/config.hpp"
