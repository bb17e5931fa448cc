#pragma once
/// @file
/// The headers that most programs of the integration tests use.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dtrain/dtrain.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
