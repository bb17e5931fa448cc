#pragma once
/// @file
/// The headers and names that most tests of ddp/ use.

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "support/captured_stderr.hpp"
#include "support/counting_communicator.hpp"
#include "support/expect_error.hpp"
#include "support/fake_communicator.hpp"
#include "support/fake_group_handle.hpp"
#include "support/fake_store.hpp"
#include "support/skip.hpp"
#include "support/temporary_directory.hpp"
#include "unit/ddp/agreement/two_layers.hpp"
#include "unit/ddp/fake_rank.hpp"

using namespace ddp_test;
using namespace dtrain::ddp;
using namespace std::chrono_literals;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::Errc;
using dtrain::Error;
using dtrain::Parameter;
using dtrain::Step;
using dtrain::tensor_view;
using dtrain::backend::LinkCost;
using support::FakeJob;
using support::FakeStore;
using support::TemporaryFile;
