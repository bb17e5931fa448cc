// Saves a training with LibTorch in the middle of an epoch and goes on from the file:
//   checkpoint_probe --nproc-per-node=N FILE        rank 0 prints "holds: ..." for each check
//   checkpoint_probe --nproc-per-node=N FILE ranks  loads FILE, which another number of ranks has saved; rank 0 prints
//                                                   the elements of convolution.weight

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "expectations.hpp"
#include "optimizer_checks.hpp"
#include "weights_checks.hpp"

namespace {

/// Called before the next read of a checkpoint, which has opened its file.
std::function<void()> before_next_read;

}  // namespace

/// In place of the system library's.
extern "C" ssize_t pread(int descriptor, void* bytes, std::size_t count, off_t offset) {
  if (const auto before = std::exchange(before_next_read, nullptr)) before();
  return static_cast<ssize_t>(::syscall(SYS_pread64, descriptor, bytes, count, offset));
}

namespace {

using namespace libtorch_probe;
using dtrain::libtorch::SamplerPosition;

/// Random numbers, statistics, element types that dtrain has not, and memory in another order.
struct NetImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor images = norm(convolution(x.view({-1, 2, 1, 3}))).flatten(1);
    return torch::dropout(images, 0.5, is_training()) * torch::view_as_real(factors).select(1, 0).sum() + counts.sum();
  }
  nn::Conv2d convolution = register_module("convolution", nn::Conv2d(nn::Conv2dOptions(2, 4, {1, 2})));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(4));
  torch::Tensor factors = register_parameter("factors", torch::ones({2}, torch::kComplexFloat));
  torch::Tensor frozen = register_parameter("frozen", torch::zeros({3}), false);
  torch::Tensor counts = register_buffer("counts", torch::ones({2}, torch::kInt16));
  torch::Tensor expanded = register_buffer("expanded", torch::ones({1, 2}).expand({4, 2}));
};
TORCH_MODULE(Net);

struct Quantized : nn::Module {
  torch::Tensor table = register_buffer("table", torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQUInt8));
};

const dtrain::SamplerOptions samples{.dataset_size = 60, .global_batch = 12, .seed = 3};

/// A training of its own, with values that `seed` decides.
template <class Optimizer>
struct Training {
  template <class Options>
  Training(const Group& all, std::uint64_t seed, const Options& options)
      : group(all), sampler(all, samples), position(sampler), net(seeded(seed + 10 * rank())), made(net, options) {
    net->convolution->weight.set_data(net->convolution->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    torch::NoGradGuard no_grad;
    net->frozen.fill_(static_cast<double>(seed));
    net->counts.fill_(static_cast<double>(seed));
    net->expanded.narrow(0, 0, 1).fill_(static_cast<double>(seed));
  }

  /// Random numbers differ between the ranks.
  static Net seeded(std::uint64_t seed) {
    torch::manual_seed(seed);
    return Net();
  }
  std::uint64_t rank() const { return static_cast<std::uint64_t>(group.rank()); }

  /// Wrapped by the program, which may do it before or after loading.
  void run(DistributedDataParallel<Net, Policy>& ddp, int steps) {
    for (; steps > 0; --steps) {
      const auto batches = sampler.batches(position.epoch);
      std::vector<torch::Tensor> rows;
      for (const std::size_t sample : batches[position.step])
        rows.push_back(torch::linspace(0, 1, 6) * (static_cast<double>(sample) + 1));
      optimizer().zero_grad();
      ddp.backward(loss_of(ddp(torch::stack(rows))));
      optimizer().step();
      if (++position.step == batches.size()) {
        ++position.epoch;
        position.step = 0;
      }
    }
  }

  struct Made {
    template <class Options>
    Made(const Net& net, const Options& options) : optimizer(net->parameters(), options) {}
    Optimizer optimizer;
  };
  Optimizer& optimizer() { return made.optimizer; }

  Group group;
  dtrain::DistributedSampler sampler;
  SamplerPosition position;
  Net net;
  Made made;
};

void require_same(const Net& a, const Net& b) {
  for (const auto& list :
       {std::pair(a->named_parameters(), b->named_parameters()), std::pair(a->named_buffers(), b->named_buffers())}) {
    for (const auto& item : list.first) {
      const torch::Tensor other = list.second[item.key()];
      require(torch::equal(torch::cat({item.value().flatten()}), torch::cat({other.flatten()})),
              item.key() + " has the bits of the undisturbed training");
    }
  }
}

/// 9 steps, of which 5 are an epoch, are the same in one piece and as 7 and 2.
template <class Optimizer, class Options>
void check_resumed(const Group& group, const std::string& file, const Options& options, const Options& others) {
  Training<Optimizer> whole(group, 1, options);
  {
    DistributedDataParallel ddp{whole.net, group};
    whole.run(ddp, 7);
    dtrain::save_checkpoint(group, file, whole.net, whole.optimizer(), whole.position);
    whole.run(ddp, 2);
  }
  for (const bool wraps_first : {true, false}) {
    Training<Optimizer> resumed(group, 2, others);
    const auto load = [&] {
      require(dtrain::load_checkpoint(group, file, resumed.net, resumed.optimizer(), resumed.position),
              "there is a file");
    };
    if (!wraps_first) load();
    DistributedDataParallel ddp{resumed.net, group};
    if (wraps_first) {
      resumed.run(ddp, 1);
      load();
    }
    require(resumed.position.epoch == 1 && resumed.position.step == 2, "the position is that of the file");
    require(resumed.net->convolution->weight.is_contiguous(torch::MemoryFormat::ChannelsLast),
            "tensors keep their layout");
    resumed.run(ddp, 2);
    require_same(whole.net, resumed.net);
  }
}

/// Two networks with optimizers of their own, a schedule for each, a number of the program's, and no sampler.
struct Parts {
  Parts(const Group& group, int seed, double rate)
      : a(two_layers(seed)),
        b(two_layers(seed + 1)),
        ddp(dtrain::libtorch::Modules{a.ptr(), b.ptr()}, group),
        of_a(a->parameters(), torch::optim::AdamWOptions(rate)),
        of_b(b->parameters(), torch::optim::SGDOptions(rate).momentum(0.9)),
        schedule_a(of_a, 2, 0.5),
        schedule_b(of_b, 3, 0.7) {
    torch::manual_seed(static_cast<std::uint64_t>(seed + 10 * group.rank()));
  }

  void run(int steps) {
    for (; steps > 0; --steps, ++done) {
      of_a.zero_grad();
      of_b.zero_grad();
      const torch::Tensor x = torch::rand({4, 6});
      ddp.backward(loss_of(a->forward(x)) + loss_of(b->forward(x)));
      of_a.step();
      of_b.step();
      schedule_a.step();
      schedule_b.step();
    }
  }
  std::vector<dtrain::NamedTensor> numbers() { return {{"done", dtrain::tensor_view(&done, {})}}; }

  std::int64_t done = 0;
  nn::Sequential a, b;
  DistributedDataParallel<dtrain::libtorch::Modules, Policy> ddp;
  torch::optim::AdamW of_a;
  torch::optim::SGD of_b;
  torch::optim::StepLR schedule_a, schedule_b;
};

void check_parts(const Group& group, const std::string& file) {
  for (const bool in_background : {false, true}) {
    Parts whole(group, 1, 0.1);
    whole.run(5);
    const dtrain::libtorch::Modules modules{whole.a.ptr(), whole.b.ptr()};
    dtrain::PendingCheckpoint pending;
    if (in_background) {
      pending = dtrain::save_checkpoint_async(group, file, modules, whole.schedule_a, whole.schedule_b, whole.of_a,
                                              whole.of_b, whole.numbers());
    } else {
      dtrain::save_checkpoint(group, file, modules, whole.of_a, whole.of_b, whole.schedule_a, whole.schedule_b,
                              whole.numbers());
    }
    whole.run(6);
    pending.wait();
    Parts resumed(group, 7, 0.3);
    resumed.run(1);
    const dtrain::libtorch::Modules others{resumed.a.ptr(), resumed.b.ptr()};
    require(dtrain::load_checkpoint(group, file, others, resumed.of_a, resumed.of_b, resumed.numbers(),
                                    resumed.schedule_a, resumed.schedule_b),
            "there is a file");
    require(resumed.done == 5, "numbers of the program are loaded");
    resumed.run(6);
    for (const auto& [mine, theirs] : {std::pair(resumed.a, whole.a), std::pair(resumed.b, whole.b)}) {
      for (std::size_t i = 0; i < mine->parameters().size(); ++i)
        require(torch::equal(mine->parameters()[i], theirs->parameters()[i]), "two optimizers go on with their bits");
    }
    require(resumed.of_a.param_groups()[0].options().get_lr() == whole.of_a.param_groups()[0].options().get_lr(),
            "schedules go on");
    require_error("it has no tensor 'dtrain.optimizer",
                  [&] { dtrain::load_checkpoint(group, file, others, resumed.of_b, resumed.of_a); });
  }
}

/// The file that replaces the other one has an optimizer with a state, whose bytes are more.
void check_replaced(const Group& group, const std::string& file) {
  const torch::optim::AdamWOptions options(0.01);
  Training<torch::optim::AdamW> saved(group, 1, options);
  dtrain::save_checkpoint(group, file, saved.net, saved.optimizer(), saved.position);
  {
    DistributedDataParallel ddp{saved.net, group};
    saved.run(ddp, 7);
  }
  dtrain::save_checkpoint(group, file + ".next", saved.net, saved.optimizer(), saved.position);
  if (group.rank() == 0) before_next_read = [&] { std::rename((file + ".next").c_str(), file.c_str()); };
  Training<torch::optim::AdamW> loaded(group, 2, options);
  require(dtrain::load_checkpoint(group, file, loaded.net, loaded.optimizer(), loaded.position), "there is a file");
  require(loaded.position.epoch == 1 && loaded.position.step == 2, "the position is that of the new file");
  if (group.rank() == 0) require_same(saved.net, loaded.net);  // other ranks have buffers of their own
}

void check_refused(const Group& group, const std::string& file) {
  Training<torch::optim::SGD> other(group, 1, torch::optim::SGDOptions(0.1));
  require(!dtrain::load_checkpoint(group, file + ".missing", other.net, other.optimizer(), other.position),
          "no file is no error");
  const torch::Tensor before = other.net->convolution->weight.clone();
  require_error("it has no tensor 'dtrain.optimizer.param_groups.factors.momentum' (the nearest is ",
                [&] { dtrain::load_checkpoint(group, file, other.net, other.optimizer(), other.position); });
  require(torch::equal(before, other.net->convolution->weight), "a refused file changes nothing");
  Training<torch::optim::AdamW> sampled(group, 1, torch::optim::AdamWOptions(0.1));
  sampled.position.options.seed = 4;
  require_error("is of a sampler with seed 3, the program's has 4",
                [&] { dtrain::load_checkpoint(group, file, sampled.net, sampled.optimizer(), sampled.position); });
  sampled.position.options.seed = samples.seed;
  sampled.position.options.drop_last = true;
  require_error("with shuffle + 2 * drop_last 1, the program's has 3",
                [&] { dtrain::load_checkpoint(group, file, sampled.net, sampled.optimizer(), sampled.position); });
  require_error("table has elements of type QUInt8", [&] {  // on every rank, and no other rank waits for rank 0
    dtrain::save_checkpoint(group, file + ".quantized", std::make_shared<Quantized>());
  });
  if (group.rank() == 0) {  // 100 bytes that claim random numbers of 2^60 bytes, of a type that dtrain does not have
    const std::string header = R"({"dtrain.rng":{"dtype":"F4","shape":[1073741824,1073741824],"data_offsets":[0,0]}})";
    const std::uint64_t length = header.size();
    std::ofstream foreign(file + ".foreign", std::ios::binary);
    foreign.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  }
  group.barrier();
  require_error(".foreign cannot be loaded", [&] { dtrain::load_checkpoint(group, file + ".foreign", sampled.net); });
  torch::optim::AdamW fewer(std::vector<torch::Tensor>{sampled.net->factors}, torch::optim::AdamWOptions(0.1));
  require_error("is none of the program's",
                [&] { dtrain::load_checkpoint(group, file, sampled.net, fewer, sampled.position); });
}

void print_elements(const torch::Tensor& weight) {
  const torch::Tensor elements = weight.detach().contiguous();
  for (std::int64_t i = 0; i < elements.numel(); ++i)
    std::printf(" %a", static_cast<double>(elements.data_ptr<float>()[i]));
  std::printf("\n");
}

int probe(Group group, dtrain::Arguments arguments) {
  if (arguments.size() < 2) throw std::runtime_error("give the file to write");
  const std::string file(arguments[1]);
  torch::set_num_threads(1);
  if (arguments.size() > 2) {
    Training<torch::optim::AdamW> training(group, 2, torch::optim::AdamWOptions(0.1));
    require(dtrain::load_checkpoint(group, file, training.net, training.optimizer(), training.position),
            "there is a file");
    require(training.position.step == 2 && is_same_everywhere(group, training.net->convolution->weight),
            "other numbers of ranks go on as well");
    if (group.rank() == 0) print_elements(training.net->convolution->weight);
    return 0;
  }
  using torch::optim::AdamWOptions;
  using torch::optim::SGDOptions;
  check_resumed<torch::optim::SGD>(group, file, SGDOptions(0.1).momentum(0.9), SGDOptions(0.2));
  check_resumed<torch::optim::AdamW>(group, file, AdamWOptions(0.01).weight_decay(0.1), AdamWOptions(0.5));
  if (group.rank() == 0) std::printf("holds: a resumed training has the bits of an undisturbed one\n");
  check_parts(group, file + ".parts");
  if (group.rank() == 0) std::printf("holds: checkpoints have several optimizers and schedules, and need no sampler\n");
  check_replaced(group, file + ".replaced");
  if (group.rank() == 0)
    std::printf("holds: a checkpoint that is replaced while it is loaded is loaded as the new one\n");
  check_names(group, file + ".names");
  check_weights(group, file + ".weights");
  if (group.rank() == 0) std::printf("holds: weights have the names of state_dict()\n");
  check_shared(group, file + ".shared");
  check_types(group, file + ".types");
  if (group.rank() == 0) std::printf("holds: shared tensors are saved once, and elements by their types\n");
  check_optimizers(group, file + ".optimizers");
  if (group.rank() == 0) std::printf("holds: optimizers are saved by the names of PyTorch's flattened state\n");
  check_refused(group, file);
  if (group.rank() == 0) std::printf("holds: checkpoints of other trainings are refused\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
