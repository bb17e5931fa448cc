#define DTRAIN_IMPLEMENTATION  // all files of the program: -DDTRAIN_SEPARATE_COMPILATION=1
#include "dtrain.hpp"
