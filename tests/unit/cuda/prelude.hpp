#pragma once
/// @file
/// The headers and names that most tests of cuda/ use.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/hooks/cast.hpp"
#include "dtrain/ddp/hooks/local_sgd.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_kernel.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "dtrain/topology/message_algorithms.hpp"
#include "support/block_checks.hpp"
#include "support/captured_stderr.hpp"
#include "support/contains.hpp"
#include "support/cuda_memory.hpp"
#include "support/cuda_training_rank.hpp"
#include "support/expect_error.hpp"
#include "support/gate.hpp"
#include "support/graph_replays.hpp"
#include "support/nccl_rank.hpp"
#include "support/program.hpp"
#include "support/ptxas.hpp"
#include "support/scoped_variable.hpp"
#include "support/skip.hpp"
#include "support/staged_rank.hpp"
#include "support/thread_group.hpp"

#if DTRAIN_EMULATED_CUDA
#include "emulation/emulation.hpp"
#include "support/emulated_devices.hpp"
#include "support/emulated_ranks.hpp"
#include "support/two_streams.hpp"
#endif

using namespace dtrain::backend;
using namespace dtrain::stream::cuda;
using namespace std::chrono_literals;
using namespace support;
using dtrain::bfloat16;
using dtrain::BufferView;
using dtrain::CauseKind;
using dtrain::Deadline;
using dtrain::DeviceKind;
using dtrain::DistributedDataParallel;
using dtrain::DType;
using dtrain::Errc;
using dtrain::Error;
using dtrain::float16;
using dtrain::Ready;
using dtrain::ReduceOp;
using dtrain::Step;
using dtrain::StreamHandle;
using dtrain::TensorView;
using dtrain::backend::nccl::AbandonedThreads;
using dtrain::stream::WaitResult;

using NcclPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Nccl>;
using StagedPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Staged<dtrain::backend::SharedMemory>>;
