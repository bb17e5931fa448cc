#pragma once
/// @file
/// The headers and names that most tests of rendezvous/ use.

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/async/when_all.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"
#include "support/expect_error.hpp"
#include "support/limited_child.hpp"

using namespace dtrain::rendezvous;
using dtrain::Cause;
using dtrain::CauseKind;
using dtrain::async::EventLoop;
using dtrain::async::Task;
using support::contains;
using support::sentence_of;

using Strings = std::vector<std::string>;
