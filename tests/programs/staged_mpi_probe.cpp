// One rank of a job on device memory over MPI, which mpirun starts; tests/integration/mpi_test.cpp does.
//   mpirun -n 2 staged_mpi_probe collectives|training|kill
#include "programs/prelude.hpp"
#if DTRAIN_WITH_MPI && DTRAIN_WITH_CUDA

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Staged<dtrain::backend::Mpi>>;
using Group = dtrain::ProcessGroup<Policy>;
using dtrain::BufferView;
using dtrain::ReduceOp;
using dtrain::backend::AllGather;
using dtrain::backend::AllReduce;
using dtrain::backend::Barrier;
using dtrain::backend::Broadcast;
using dtrain::backend::ReduceScatter;
using dtrain::backend::SendRecv;
using dtrain::stream::cuda::check;
using dtrain::stream::cuda::DeviceBuffer;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("wrong: ") + what);
}

void write(std::byte* device, std::size_t count, float value) {
  const std::vector<float> values(count, value);
  check(cudaMemcpy(device, values.data(), count * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
}

/// Whether all floats there are `value`.
bool holds(const std::byte* device, std::size_t count, float value) {
  std::vector<float> values(count);
  check(cudaMemcpy(values.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values == std::vector<float>(count, value);
}

BufferView view_of(std::byte* device, std::size_t count) {
  return {device, count, dtrain::DType::f32, {dtrain::DeviceKind::cuda, dtrain::stream::cuda::current_device()}};
}

/// Every collective on several pieces, in the channel's memory and in other.
int collectives(const Group& group) {
  const std::size_t count = 300'001;
  const std::size_t bytes = count * sizeof(float);
  const int size = group.world_size();
  const auto rank = static_cast<float>(group.rank());
  const float sum = static_cast<float>(size * (size - 1)) / 2;
  const auto stream = group.stream();
  auto channel = dtrain::group::GroupAccess::of(group).open_channel("probe");
  const auto wait = [&] {
    Group::Stream::Event event;
    stream.record(event);
    dtrain::backend::block_until_complete(event, channel, *dtrain::group::GroupAccess::of(group).failure(),
                                          group.timeout(), group.rank());
  };
  const auto arena = channel.allocate_blocking(bytes, dtrain::Deadline::after(group.timeout()));
  const DeviceBuffer other(bytes);
  const DeviceBuffer blocks(static_cast<std::size_t>(size) * bytes);
  for (std::byte* const memory : {arena.data(), other.data()}) {
    write(memory, count, rank);
    const BufferView view = view_of(memory, count);
    channel.enqueue(AllReduce{view, view, ReduceOp::sum}, stream);
    wait();
    require(holds(memory, count, sum), "a sum");

    write(memory, count, rank);
    const BufferView gathered = view_of(blocks.data(), static_cast<std::size_t>(size) * count);
    channel.enqueue(AllGather{view, gathered}, stream);
    channel.enqueue(ReduceScatter{gathered, view, ReduceOp::average}, stream);
    wait();
    require(holds(memory, count, rank), "an average of what was gathered");

    channel.enqueue(
        SendRecv{view, (group.rank() + 1) % size, view_of(blocks.data(), count), (group.rank() + size - 1) % size},
        stream);
    channel.enqueue(Broadcast{view, size - 1}, stream);
    channel.enqueue(Barrier{}, stream);
    wait();
    require(holds(blocks.data(), count, static_cast<float>((group.rank() + size - 1) % size)), "a message");
    require(holds(memory, count, static_cast<float>(size - 1)), "a broadcast");
  }
  const Group half = group.split(group.rank() % 2, group.rank());
  write(other.data(), count, 1);
  half.all_reduce(view_of(other.data(), count), ReduceOp::sum);
  require(holds(other.data(), count, static_cast<float>(half.world_size())), "a sum in a part of the ranks");
  return 0;
}

/// Its gradients are where DistributedDataParallel places them.
struct Model {
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  Model() {
    for (const std::int64_t count : {std::int64_t{300'000}, std::int64_t{7}}) {
      values.emplace_back(static_cast<std::size_t>(count) * sizeof(float));
      const dtrain::TensorView value{
          values.back().data(), {count}, dtrain::DType::f32, {dtrain::DeviceKind::cuda, values.back().device()}};
      dtrain::TensorView gradient = value;
      gradient.data = nullptr;
      list.push_back({"p" + std::to_string(list.size()), value, gradient});
      write(value.data, static_cast<std::size_t>(count), 0);
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { list[i].gradient = view; }

  std::vector<DeviceBuffer> values;
  std::vector<dtrain::Parameter> list;
  dtrain::stream::cuda::Stream stream;
};

/// @param ends_at the step in which rank 1 dies; never where negative
int training(const Group& group, int steps, int ends_at) {
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
  for (int step = 0; step < steps; ++step) {
    if (step == ends_at && group.rank() == 1) {
      static_cast<void>(::kill(::getpid(), SIGKILL));
    }
    for (const dtrain::Parameter& parameter : model.list) {
      write(parameter.gradient.data, parameter.gradient.shape.element_count(),
            static_cast<float>(step + 2 * group.rank()));
    }
    ddp.backward([&](dtrain::Ready ready) {
      ready(1, model.stream.ref().handle());
      ready(0, model.stream.ref().handle());
    });
    check(cudaStreamSynchronize(model.stream.ref().native()), "cudaStreamSynchronize");
    group.barrier();
    for (const dtrain::Parameter& parameter : model.list) {
      require(holds(parameter.gradient.data, parameter.gradient.shape.element_count(),
                    static_cast<float>(step + group.world_size() - 1)),
              "an average of gradients");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int exit_code = dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    const std::string_view what = arguments.size() > 1 ? arguments[1] : "collectives";
    const int wrong = what == "collectives" ? collectives(group)
                      : what == "training"  ? training(group, 5, -1)
                                            : training(group, 1'000'000, 3);
    std::puts("all right");
    return wrong;
  });
  if (dtrain::backend::mpi::has_ended()) {
    std::puts("has finalized MPI");
  }
  return exit_code;
}

#else

int main() {
  std::puts("built without MPI or without CUDA");
  return 77;
}
#endif
