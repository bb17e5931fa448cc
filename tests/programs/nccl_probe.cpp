// A job over NCCL that does what its argument says; tests/integration/nccl_test.cpp starts it.
//   nccl_probe --nproc-per-node=3
//   hello|graph|kill|throw|late|leave|stop|stop_once|endless|early|states|gradients|hang|race
// With DTRAIN_TEST_PROBE_PER_PROCESS set it is one rank, which somebody else starts; where it is "threads", NCCL starts
// one for each operation. With the argument absent, rank 1 then stops before its first operation.
#include "programs/prelude.hpp"
#if DTRAIN_WITH_NCCL

#include <signal.h>

#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "support/graph_replays.hpp"
#include "support/loaded_libraries.hpp"

namespace {

using dtrain::stream::cuda::check;

using dtrain::backend::Nccl;
using ThreadedNccl = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = false}>;

/// Floats on the rank's device.
class Values {
 public:
  Values(std::size_t count, float value) : count_(count), memory_(count * sizeof(float)) {
    const std::vector<float> values(count, value);
    check(cudaMemcpy(memory_.data(), values.data(), memory_.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  dtrain::BufferView view() const {
    return {memory_.data(), count_, dtrain::DType::f32, {dtrain::DeviceKind::cuda, memory_.device()}};
  }

  float first() const {
    float value = 0;
    check(cudaMemcpy(&value, memory_.data(), sizeof value, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return value;
  }

 private:
  std::size_t count_;
  dtrain::stream::cuda::DeviceBuffer memory_;
};

/// Conditions, structs, a list whose length the root alone knows, and a function of one's own.
template <class Group>
bool single_values_pass(const Group& group) {
  struct Split {
    double gain;
    std::int32_t rank;
  };
  const int size = group.world_size();
  const int last = size - 1;
  bool right = group.any(group.rank() == last) && !group.any(false) && group.all(true) &&
               group.all(group.rank() != last) == (size == 0);
  const std::vector<Split> splits = group.all_gather(Split{0.5, group.rank()});
  for (int rank = 0; rank < size; ++rank)
    right = right && splits[static_cast<std::size_t>(rank)].rank == rank;
  std::vector<std::int64_t> list(group.rank() == last ? 70'000 : 3, group.rank());
  group.broadcast_resized(list, last);
  right = right && list.size() == 70'000 && list.back() == last;
  std::vector<std::int32_t> many(70'000, group.rank());  // more than one piece
  std::vector<std::int32_t> all(many.size() * static_cast<std::size_t>(size));
  group.all_gather(many, all);
  right = right && all[many.size() * static_cast<std::size_t>(last)] == last && all[many.size() - 1] == 0;
  const auto fold = [](std::uint64_t earlier, std::uint64_t later) { return earlier * 31 + later; };
  std::uint64_t expected = 0;
  for (int rank = 1; rank < size; ++rank)
    expected = fold(expected, static_cast<std::uint64_t>(rank));
  std::vector<std::uint64_t> words(1000, static_cast<std::uint64_t>(group.rank()));
  group.all_reduce(words, fold);
  right = right && words == std::vector<std::uint64_t>(1000, expected);
  words.assign(static_cast<std::size_t>(size), static_cast<std::uint64_t>(group.rank()));
  std::vector<std::uint64_t> block(1);
  group.reduce_scatter_v(words, block, std::vector<int>(words.size(), 1), fold);
  group.reduce(words, 0, fold);
  right = right && block[0] == expected &&
          words.back() == (group.rank() == 0 ? expected : static_cast<std::uint64_t>(group.rank()));
  std::vector<double> too_many(100'000);
  try {
    group.all_reduce(too_many, [](double a, double b) { return a + b; });
    return size == 1 && right;
  } catch (const dtrain::Error& error) {
    return right && error.code() == dtrain::Errc::unsupported;
  }
}

/// Host memory, of more than one piece, and of none, goes through the device.
template <class Group>
bool host_values_pass(const Group& group) {
  std::vector<double> numbers(100'000);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<double>(i) + group.rank();
  group.all_reduce(numbers, dtrain::ReduceOp::max);
  std::vector<std::int64_t> words(100'000, group.rank());
  group.broadcast(words, group.world_size() - 1);
  std::vector<float> none;
  group.all_reduce(none, dtrain::ReduceOp::sum);
  bool right = true;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    right =
        right && numbers[i] == static_cast<double>(i) + group.world_size() - 1 && words[i] == group.world_size() - 1;
  }
  return right && single_values_pass(group);
}

/// Collectives of the group, a part of it and a further channel. @returns 1 if one is wrong
template <class Group>
int hello(const Group& group) {
  if (group.rank() == 0) {
    std::printf("libraries: %s, %s\n", support::loaded_library("libcudart.so").c_str(),
                support::loaded_library("libnccl.so").c_str());
  }
  const Values sum(1, static_cast<float>(group.rank()));
  group.all_reduce(sum.view(), dtrain::ReduceOp::sum);
  const Group half = group.split(group.rank() % 2, group.rank());
  const Values part(1, 1);
  half.all_reduce(part.view(), dtrain::ReduceOp::sum);
  auto channel = dtrain::group::GroupAccess::of(group).open_channel("more");
  const auto more = group.open_stream();
  const Values average(1, static_cast<float>(group.rank()));
  channel.enqueue(dtrain::backend::AllReduce{average.view(), average.view(), dtrain::ReduceOp::average}, more.ref());
  dtrain::stream::cuda::Event done;
  more.ref().record(done);
  const bool complete =
      done.block_until_complete(dtrain::Deadline::after(group.timeout())) == dtrain::stream::WaitResult::complete;
  std::printf("rank %d of %d on device %d: sum %.0f, half %.0f, average %.1f\n", group.rank(), group.world_size(),
              sum.view().device.index, sum.first(), part.first(), average.first());
  const int ranks = group.world_size();
  const auto all = static_cast<float>(ranks * (ranks - 1)) / 2;
  const auto in_part = static_cast<float>((ranks + 1 - group.rank() % 2) / 2);
  const bool right = sum.first() == all && part.first() == in_part &&
                     std::abs(average.first() - all / static_cast<float>(ranks)) < 1e-5F;
  return complete && right && host_values_pass(group) ? 0 : 1;
}

/// Captures steps in CUDA graphs and replays them. @returns 1 if a sum is wrong
template <class Group>
int graph(const Group& group) {
  const auto open = [&] {
    return support::NcclRank(dtrain::group::GroupAccess::of(group).failure(),
                             dtrain::group::GroupAccess::of(group).open_channel("graph"));
  };
  int wrong = 0;
  for (const support::GraphReplays replays : {support::GraphReplays{},
                                              support::GraphReplays{.bound = true},
                                              {.bound = true, .warm_up = 0, .mode = cudaStreamCaptureModeGlobal}}) {
    const auto outcome = replays.run(group.rank(), group.world_size(), open, [](const char*) {});
    std::printf("rank %d of %d: %s, %d steps before it: %d wrong, planned %d times again\n", group.rank(),
                group.world_size(), replays.bound ? "bound" : "not bound", replays.warm_up, outcome.wrong,
                outcome.rebuilds);
    wrong += outcome.wrong;
  }
  return wrong == 0 ? 0 : 1;
}

/// In the first attempt rank 1 stops, and rank 0 fails once its input has ended. Later ones are as hello.
template <class Group>
int stop_once(const Group& group) {
  const char* const attempt = std::getenv("DTRAIN_ATTEMPT");
  if (attempt != nullptr && std::string_view(attempt) != "0") return hello(group);
  group.barrier();
  if (group.rank() == 1) {
    static_cast<void>(::kill(::getpid(), SIGSTOP));
  }
  while (std::getchar() != EOF) {
  }
  throw std::runtime_error("rank 0 has read all");
}

/// Reduces without end, and says "phase steady" on the way; rank 1 ends in the middle of it as told.
template <class Group>
int endless(const Group& group, std::string_view how) {
  const Values values(100'000, 1);
  for (int step = 0;; ++step) {
    if (step == 10) {
      static_cast<void>(::dprintf(STDOUT_FILENO, "phase steady\n"));
    }
    if (step == 11 || step == 100 || step == 10'000) {
      static_cast<void>(::dprintf(STDOUT_FILENO, "rank %d: step %d\n", group.rank(), step));
    }
    if (step >= 10 && group.rank() == 1) {
      if (how == "kill") {
        static_cast<void>(::kill(::getpid(), SIGKILL));
      } else if (how == "throw") {
        throw std::runtime_error("rank 1 has had enough");
      } else if (how == "late") {
        std::this_thread::sleep_for(std::chrono::minutes(10));
      } else if (how == "leave") {
        return 0;
      } else if (how == "stop") {
        static_cast<void>(::kill(::getpid(), SIGSTOP));
      }
    }
    group.all_reduce(values.view(), dtrain::ReduceOp::average);
  }
}

/// Four parameters of f32 on the rank's device. Their gradients are zeros.
class Model {
 public:
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  Model() {
    const auto view_of = [](const Values& values) {
      const dtrain::BufferView view = values.view();
      return dtrain::TensorView{view.data, {static_cast<std::int64_t>(view.count)}, view.dtype, view.device};
    };
    for (const char* const name : {"first", "second", "third", "fourth"}) {
      values_.emplace_back(500, 1.0F);
      gradients_.emplace_back(500, 0.0F);
      list_.push_back({name, view_of(values_.back()), view_of(gradients_.back())});
    }
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }

 private:
  std::vector<Values> values_;
  std::vector<Values> gradients_;
  std::vector<dtrain::Parameter> list_;
};

/// Trains without end by a ShardedOptimizer, a bucket for each parameter, and waits for no step: hosts run far ahead.
/// Rank 1 is killed in its eleventh step, when two of the four buckets are on their way, or hangs there.
template <class Group>
int sharded(const Group& group, int stage, bool hangs) {
  Model model;
  const dtrain::stream::cuda::Stream stream;
  dtrain::DistributedDataParallel ddp{model, group, {.bucket_bytes = 2000, .reorder_gradients = false}};
  dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}, {.stage = stage}};
  for (int step = 0;; ++step) {
    ddp.backward(
        [&](dtrain::Ready ready) {
          for (std::size_t i = model.parameters().size(); i-- > 0;) {
            if (step == 10 && group.rank() == 1 && i == 1) {
              if (!hangs) static_cast<void>(::kill(::getpid(), SIGKILL));
              std::this_thread::sleep_for(std::chrono::minutes(10));
            }
            ready(i, stream.ref().handle());
          }
        },
        optimizer);
  }
}

/// Rank 1 leaves at once, the others some seconds after NCCL was to have ended its communicators.
template <class Group>
int early(const Group& group) {
  const Values sum(1, 1);
  group.all_reduce(sum.view(), dtrain::ReduceOp::sum);
  std::printf("rank %d: sum %.0f\n", group.rank(), sum.first());
  if (group.rank() != 1) {
    std::this_thread::sleep_for(std::chrono::seconds(14));
  }
  return 0;
}

/// Two threads launch on the rank's device at once, each on a channel of its own. NCCL may refuse that, or not notice.
/// @returns 1 if the error does not say what to do
template <class Group>
int race(const Group& group) {
  constexpr int launches = 300;
  const int device = dtrain::stream::cuda::current_device();
  std::string refused;
  std::mutex mutex;
  const auto reduce = [&](auto channel) {
    check(cudaSetDevice(device), "cudaSetDevice");
    const auto stream = group.open_stream();
    const Values values(1000, 1);
    try {
      for (int i = 0; i < launches; ++i)
        channel.enqueue(dtrain::backend::AllReduce{values.view(), values.view(), dtrain::ReduceOp::max}, stream.ref());
      check(cudaStreamSynchronize(stream.ref().native()), "cudaStreamSynchronize");
    } catch (const dtrain::Error& error) {
      const std::lock_guard lock(mutex);
      if (refused.empty()) refused = error.what();
    }
  };
  {
    auto first = dtrain::group::GroupAccess::of(group).open_channel("first");
    auto second = dtrain::group::GroupAccess::of(group).open_channel("second");
    std::thread other(reduce, std::move(second));
    reduce(std::move(first));
    other.join();
  }
  std::printf("rank %d: %s\n", group.rank(), refused.empty() ? "no race was noticed" : refused.c_str());
  return refused.find("racing") == std::string::npos || refused.find("NCCL_LAUNCH_RACE_FATAL=0") != std::string::npos
             ? 0
             : 1;
}

template <class Launcher, class Backend>
int job(int argc, char** argv) {
  using Policy = dtrain::Policy<Launcher, Backend>;
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    const std::string_view what = arguments.size() > 1 ? arguments[1] : "hello";
    if (what == "absent" && group.rank() == 1) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));
    }
    return what == "hello"       ? hello(group)
           : what == "graph"     ? graph(group)
           : what == "stop_once" ? stop_once(group)
           : what == "early"     ? early(group)
           : what == "states"    ? sharded(group, 1, false)
           : what == "gradients" ? sharded(group, 2, false)
           : what == "race"      ? race(group)
           : what == "hang"      ? sharded(group, 1, true)
                                 : endless(group, what);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* const kind = std::getenv("DTRAIN_TEST_PROBE_PER_PROCESS")) {
    return std::string_view(kind) == "threads" ? job<dtrain::launch::PerProcess, ThreadedNccl>(argc, argv)
                                               : job<dtrain::launch::PerProcess, Nccl>(argc, argv);
  }
  return job<dtrain::launch::PerNode, Nccl>(argc, argv);
}

#else
#include <cstdint>

int main() {
  std::puts("built without NCCL");
  return 77;
}
#endif
