#pragma once
/// @file
/// The headers and names that most tests of integration/ use.

#include <doctest/doctest.h>

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/contains.hpp"
#include "support/ended.hpp"
#include "support/free_port.hpp"
#include "support/launch_probe.hpp"
#include "support/program.hpp"
#include "support/skip.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"

using support::contains;
using support::content;
using support::lines_of;
using support::new_mark;
using support::probe;
using support::Program;
using support::reaches_state;
using support::Result;
using support::SummaryFile;
using support::TemporaryDirectory;
using support::two_seconds;
