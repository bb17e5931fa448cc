// Trains small models for 50 steps on two ranks with dtrain::libtorch::DistributedDataParallel:
//   parity_probe --nproc-per-node=2 FOLDER    writes FOLDER/dtrain.CASE.RANK for each case
// parity_ddp.py does the same with PyTorch's own and compares.

#include "expectations.hpp"
#include "parity_values.hpp"

namespace {

using namespace parity;
using State = std::vector<ModuleTensor>;
using Case = State (*)(const Group&);

template <class Make>
State train_layers(const Group& group, nn::Sequential net, Make make_optimizer,
                   Gradients gradients = Gradients::set_to_none) {
  DistributedDataParallel ddp{net, group};
  const auto backward = [&](int step) { ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step)); };
  train(make_optimizer(net->parameters()), backward, gradients);
  return state_of(*net);
}

State train_converted(const Group& group, torch::Dtype dtype) {
  nn::Sequential net = layers(group.rank());
  net->to(dtype);
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()),
        [&](int step) { ddp.backward(loss_of(ddp(inputs(group.rank(), step).to(dtype)), group.rank(), step)); });
  return state_of(*net);
}

State clipped(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step));
    nn::utils::clip_grad_norm_(net->parameters(), 0.05);
  });
  return state_of(*net);
}

/// The second head is used on the ranks below `ranks`, the first on all.
State heads(const Group& group, int ranks, dtrain::libtorch::GraphPolicy graph) {
  nn::Linear first(6, 3), second(6, 3);
  nn::Sequential both(first, second);
  fill_parameters(*both, group.rank());
  DistributedDataParallel ddp{
      both, group, {.allow_unused_parameters = true}, dtrain::libtorch::BufferPolicy::rank0, graph};
  train(adamw(both->parameters()), [&](int step) {
    torch::Tensor output = first->forward(inputs(group.rank(), step));
    if (group.rank() < ranks) output = output + second->forward(inputs(group.rank(), step));
    ddp.backward(loss_of(output, group.rank(), step));
  });
  return state_of(*both);
}

State frozen(const Group& group) {
  nn::Sequential net = layers(group.rank());
  net->parameters()[0].set_requires_grad(false);
  net->parameters()[1].set_requires_grad(false);
  std::vector<torch::Tensor> trained{net->parameters()[2], net->parameters()[3]};
  return train_layers(group, net, [&](const auto&) { return momentum_sgd(trained); });
}

State batch_norm(const Group& group, dtrain::libtorch::BufferPolicy policy) {
  nn::BatchNorm1d norm(16);
  const bool is_shared = policy == dtrain::libtorch::BufferPolicy::rank0;  // PyTorch 2 leaves other buffers alone
  fill(norm->running_mean, static_cast<std::uint32_t>(900 + (is_shared ? group.rank() : 0)));
  nn::Sequential net = layers(group.rank(), norm);
  DistributedDataParallel ddp{net, group, {}, policy};
  train(plain_sgd(net->parameters()),
        [&](int step) { ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step)); });
  return state_of(*net);
}

State sync_batch_norm(const Group& group) {
  nn::Sequential net = layers(group.rank(), nn::BatchNorm1d(16));
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  return train_layers(group, net, plain_sgd);
}

State accumulation(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(momentum_sgd(net->parameters()), [&](int step) {
    for (int pass = 0; pass < 4; ++pass) {
      std::optional<dtrain::ddp::NoSync> held;
      if (pass < 3) held.emplace(ddp.no_sync());
      ddp.backward(loss_of(ddp(inputs(group.rank(), step, pass)), group.rank(), step, pass) / 4);
    }
  });
  return state_of(*net);
}

State two_passes(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    for (int pass = 0; pass < 2; ++pass)
      ddp.backward(loss_of(ddp(inputs(group.rank(), step, pass)), group.rank(), step, pass));
  });
  return state_of(*net);
}

State several_roots(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    const torch::Tensor output = ddp(inputs(group.rank(), step));
    ddp.backward({loss_of(output, group.rank(), step), output}, {torch::ones({}), values({4, 3}, 5) * 0.01});
  });
  return state_of(*net);
}

State retained_graph(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    const torch::Tensor loss = loss_of(ddp(inputs(group.rank(), step)), group.rank(), step);
    ddp.backward({loss}, {}, true);
    ddp.backward(loss);
  });
  return state_of(*net);
}

/// The loss has derivatives by the inputs and by the parameters in it.
State second_derivatives(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    std::vector<torch::Tensor> by = net->parameters();
    by.insert(by.begin(), inputs(group.rank(), step).requires_grad_());
    torch::Tensor loss = loss_of(ddp(by[0]), group.rank(), step);
    for (const torch::Tensor& derivative : torch::autograd::grad({loss}, by, {}, {}, true))
      loss = loss + 0.1 * derivative.square().sum();
    ddp.backward(loss);
  });
  return state_of(*net);
}

State embedding(const Group& group) {
  nn::Embedding net(nn::EmbeddingOptions(10, 4).sparse(true));
  fill_parameters(*net, group.rank());
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()), [&](int step) {
    const torch::Tensor words = (torch::arange(6).square() + 7 * step + 3 * group.rank()).remainder(10);
    ddp.backward(loss_of(ddp(words), group.rank(), step));
  });
  return state_of(*net);
}

struct Tied : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.matmul(weight).tanh().matmul(again); }
  torch::Tensor weight = register_parameter("weight", torch::zeros({6, 6}));
  torch::Tensor again = register_parameter("again", weight);
};

State tied(const Group& group) {
  const auto net = std::make_shared<Tied>();
  fill(net->weight, static_cast<std::uint32_t>(100 * group.rank()));
  DistributedDataParallel ddp{net, group};
  train(momentum_sgd({net->weight}),
        [&](int step) { ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step)); });
  return state_of(*net);
}

State channels_last(const Group& group) {
  nn::Conv2d net(3, 4, 3);
  fill_parameters(*net, group.rank());
  net->weight.set_data(net->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  DistributedDataParallel ddp{net, group};
  train(momentum_sgd(net->parameters()), [&](int step) {
    const torch::Tensor images = values({2, 3, 6, 6}, seed_of(group.rank(), step));
    ddp.backward(loss_of(ddp(images.contiguous(torch::MemoryFormat::ChannelsLast)), group.rank(), step));
  });
  return state_of(*net);
}

/// A generator, and a discriminator whose gradients of the generator's pass are thrown away.
State two_wrappers(const Group& group) {
  nn::Sequential generator(nn::Linear(6, 6), nn::Tanh());
  nn::Sequential discriminator = layers(group.rank());
  fill_parameters(*generator, group.rank() + 5);
  DistributedDataParallel wrapped_generator{generator, group};
  DistributedDataParallel wrapped_discriminator{discriminator, group};
  auto optimizer = plain_sgd(generator->parameters());
  train(momentum_sgd(discriminator->parameters()), [&](int step) {
    const torch::Tensor made = wrapped_generator(inputs(group.rank(), step));
    zero_gradients(optimizer, Gradients::set_to_none);
    wrapped_generator.backward(loss_of(discriminator->forward(made), group.rank(), step));
    optimizer.step();
    discriminator->zero_grad(true);
    wrapped_discriminator.backward(loss_of(wrapped_discriminator(made.detach()), group.rank(), step, 1));
  });
  State state = state_of(*generator, "generator.");
  for (const ModuleTensor& named : state_of(*discriminator, "discriminator.")) {
    state.push_back(named);
  }
  return state;
}

State loaded(const Group& group) {
  nn::Sequential net = layers(group.rank());
  DistributedDataParallel ddp{net, group};
  train(momentum_sgd(net->parameters()), [&](int step) {
    if (step == 25) {
      std::stringstream stream;
      torch::save(layers(7), stream);
      torch::load(net, stream);
    }
    ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step));
  });
  return state_of(*net);
}

struct Odd : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor scaled = weight.is_complex() ? torch::view_as_real(weight).flatten() : weight.flatten();
    return x * scaled + (extra.defined() ? extra.to(x.dtype()).sum() : torch::zeros({}));
  }
  torch::Tensor weight, extra;
};

State odd(const Group& group, const torch::Tensor& weight, const torch::Tensor& extra) {
  const auto net = std::make_shared<Odd>();
  net->weight = net->register_parameter("weight", weight);
  if (extra.defined()) net->extra = net->register_buffer("extra", extra);
  DistributedDataParallel ddp{net, group};
  train(plain_sgd(net->parameters()),
        [&](int step) { ddp.backward(loss_of(ddp(inputs(group.rank(), step)), group.rank(), step)); });
  return state_of(*net);
}

torch::Tensor weight_of(const Group& group, const std::vector<std::int64_t>& shape) {
  return values(shape, static_cast<std::uint32_t>(100 * group.rank()));
}

const std::vector<std::pair<const char*, Case>> cases{
    {"sgd", [](const Group& g) { return train_layers(g, layers(g.rank()), plain_sgd); }},
    {"momentum", [](const Group& g) { return train_layers(g, layers(g.rank()), momentum_sgd); }},
    {"kept", [](const Group& g) { return train_layers(g, layers(g.rank()), momentum_sgd, Gradients::kept); }},
    {"adamw", [](const Group& g) { return train_layers(g, layers(g.rank()), adamw); }},
    {"clipped", clipped},
    {"unused", [](const Group& g) { return heads(g, 0, dtrain::libtorch::GraphPolicy::dynamic_graph); }},
    {"used_on_rank0", [](const Group& g) { return heads(g, 1, dtrain::libtorch::GraphPolicy::dynamic_graph); }},
    {"static_graph", [](const Group& g) { return heads(g, 0, dtrain::libtorch::GraphPolicy::static_graph); }},
    {"frozen", frozen},
    {"batch_norm", [](const Group& g) { return batch_norm(g, dtrain::libtorch::BufferPolicy::rank0); }},
    {"own_buffers", [](const Group& g) { return batch_norm(g, dtrain::libtorch::BufferPolicy::none); }},
    {"sync_batch_norm", sync_batch_norm},
    {"no_sync", accumulation},
    {"two_passes", two_passes},
    {"several_roots", several_roots},
    {"retain_graph", retained_graph},
    {"create_graph", second_derivatives},
    {"embedding", embedding},
    {"tied", tied},
    {"channels_last", channels_last},
    {"two_wrappers", two_wrappers},
    {"loaded", loaded},
    {"f64", [](const Group& g) { return train_converted(g, torch::kFloat64); }},
    {"bf16", [](const Group& g) { return train_converted(g, torch::kBFloat16); }},
    {"complex",
     [](const Group& g) {
       return odd(g, torch::view_as_complex(weight_of(g, {3, 2})), {});
     }},
    {"nine_dimensions",
     [](const Group& g) {
       return odd(g, weight_of(g, {1, 1, 1, 1, 1, 1, 1, 2, 3}), {});
     }},
    {"int16_buffer",
     [](const Group& g) { return odd(g, weight_of(g, {6}), torch::full({3}, 1 + g.rank(), torch::kInt16)); }},
    {"expanded_buffer",
     [](const Group& g) { return odd(g, weight_of(g, {6}), torch::full({1}, 1.0 + g.rank()).expand({3})); }},
};

/// One line a tensor: its name, then its elements as hexadecimal floating-point numbers, or `none`.
void write(const std::string& path, const State& state) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  for (const ModuleTensor& named : state) {
    std::fputs(named.name.c_str(), file);
    if (!named.tensor.defined()) {
      std::fputs(" none\n", file);
      continue;
    }
    const torch::Tensor real = named.tensor.is_complex() ? torch::view_as_real(named.tensor) : named.tensor;
    const torch::Tensor flat = real.detach().to(torch::kFloat64).contiguous();
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      std::fprintf(file, " %a", flat.data_ptr<double>()[i]);
    }
    std::fputc('\n', file);
  }
  if (std::fclose(file) != 0) throw std::runtime_error("cannot write " + path);
}

int probe(Group group, dtrain::Arguments arguments) {
  if (arguments.size() != 2) throw std::runtime_error("give the folder to write to");
  torch::set_num_threads(1);
  for (const auto& [name, run] : cases) {
    write(std::string(arguments[1]) + "/dtrain." + name + "." + std::to_string(group.rank()), run(group));
  }
  if (group.rank() == 0) std::printf("LibTorch %s\n", TORCH_VERSION);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<libtorch_probe::Policy>(argc, argv, probe);
}
