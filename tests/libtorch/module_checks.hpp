#pragma once
/// @file
/// Checks of which modules, tensors and element types can be wrapped, and of what is changed afterwards.

#include "expectations.hpp"

namespace libtorch_probe {

/// Notes in which order gradients are marked ready, and whether the first parameter's gradient is still zero then.
struct Sink final : dtrain::Ready::Sink {
  explicit Sink(const torch::Tensor& parameter) : first(parameter) {}
  void ready(const dtrain::ReadyGradient& gradient) override {
    if (gradient.stream) throw std::logic_error("a stream");
    if (gradient.memory) throw std::logic_error("memory");
    order.push_back(gradient.parameter);
    first_was_zero.push_back(!first.grad().defined() || first.grad().abs().sum().item<double>() == 0);
  }

  torch::Tensor first;
  std::vector<std::size_t> order;
  std::vector<bool> first_was_zero;
};

inline void check_order(const Group&) {
  nn::Sequential net = two_layers(0);
  dtrain::libtorch::ModuleModel<dtrain::DeviceKind::host> model({net.ptr()});
  std::vector<torch::Tensor> memory;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    memory.push_back(torch::zeros_like(net->parameters()[i]));
    model.bind_gradient(i, dtrain::libtorch::view_of(memory[i]));
  }
  Sink sink(net->parameters()[0]);
  model.backward({loss_of(net->forward(inputs_of(0, 0)))}, {}, false, false, dtrain::Ready(sink));
  require(sink.order.size() == 4, "each gradient is marked ready once");
  require(sink.order[0] >= 2 && sink.order[1] >= 2 && sink.first_was_zero[0] && sink.first_was_zero[1],
          "the last layer's gradients are ready before the first layer's are computed");
  require(torch::equal(memory[0], net->parameters()[0].grad()) && memory[0].abs().sum().item<double>() > 0,
          "gradients are in the memory that they were bound to");
  loss_of(net->forward(inputs_of(0, 0))).backward();
  require(sink.order.size() == 4, "a backward pass that is none of dtrain's marks nothing ready");
}

struct Tied : nn::Module {
  torch::Tensor forward() { return (weight + 2 * again + frozen).sum(); }
  torch::Tensor weight = register_parameter("weight", torch::ones({3}));
  torch::Tensor again = register_parameter("again", weight);
  torch::Tensor frozen = register_parameter("frozen", torch::ones({3}), false);
};

inline void check_tied(const Group& group) {
  const auto tied = std::make_shared<Tied>();
  const auto listed = dtrain::libtorch::ModuleModel<dtrain::DeviceKind::host>({tied}).parameters();
  require(listed.size() == 1 && listed[0].name == "weight", "a tied parameter is listed once, a frozen one not");
  DistributedDataParallel ddp{tied, group};
  ddp.backward(ddp() * (group.rank() + 1));
  require(are_close(tied->weight.grad(), torch::full({3}, 3 * 0.5 * (group.world_size() + 1))),
          "both uses of a tied parameter are in its gradient");
}

struct One : nn::Module {
  explicit One(const torch::Tensor& value) : only(register_parameter("only", value)) {}
  torch::Tensor forward() { return only; }
  torch::Tensor only;
};

inline void check_types(const Group& group) {
  const double mean = 0.5 * (group.world_size() + 1);
  for (const torch::Dtype dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    const auto one = std::make_shared<One>(torch::full({5}, group.rank(), dtype));
    DistributedDataParallel ddp{one, group};
    require(one->only.to(torch::kFloat64).abs().sum().item<double>() == 0, "every rank has rank 0's values");
    ddp.backward((ddp().to(torch::kFloat32) * static_cast<float>(group.rank() + 1)).sum());
    require(are_close(one->only.grad().to(torch::kFloat64), torch::full({5}, mean, torch::kFloat64)),
            "a gradient of any element type is averaged");
  }
  const auto last = std::make_shared<One>(torch::zeros({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast));
  DistributedDataParallel ddp{last, group};
  const torch::Tensor factor = torch::arange(120.0).reshape({2, 3, 4, 5});
  ddp.backward((ddp() * factor).sum() * (group.rank() + 1));
  require(are_close(last->only.grad(), factor * mean), "elements that lie in another order keep their places");
  require(last->only.grad().strides() == last->only.strides(), "a gradient lies as its value does");
  require_error("only is not dense memory of the host or a CUDA device (strides 0, 1 of shape 3, 4)", [&] {
    DistributedDataParallel{std::make_shared<One>(torch::zeros({1, 4}).expand({3, 4})), group};
  });
}

/// Parameters that are parts of other tensors, with memory between their elements.
inline void check_gaps(const Group& group) {
  const double mean = 0.5 * (group.world_size() + 1);
  const auto whole_of = [&] { return torch::full({10, 16, 3}, group.rank() + 1.0); };
  const auto part_of = [](const torch::Tensor& whole) { return whole.index({torch::indexing::Slice(), 0}); };
  for (const bool unbinds : {false, true}) {
    const torch::Tensor whole = whole_of();
    const auto one = std::make_shared<One>(part_of(whole).detach());
    require(!one->only.is_non_overlapping_and_dense(), "the parameter has gaps");
    DistributedDataParallel ddp{one, group};
    require(one->only.eq(1).all().item<bool>(), "a parameter with gaps gets rank 0's values");
    require(part_of(whole).eq(1).all().item<bool>(), "and keeps its memory");
    require(whole.select(1, 1).eq(group.rank() + 1).all().item<bool>(), "beside which nothing is written");
    torch::optim::SGD optimizer({one->only}, 0.5);
    for (int step = 0; step < 3; ++step) {
      if (unbinds) one->only.mutable_grad() = torch::Tensor();
      if (!unbinds) optimizer.zero_grad();
      ddp.backward((ddp() * static_cast<float>(group.rank() + 1)).sum());
      require(one->only.grad().eq(mean).all().item<bool>(), "its gradient is averaged");
      optimizer.step();
    }
    require(one->only.eq(1 - 1.5 * mean).all().item<bool>(), "it is trained");
  }
  const torch::Tensor columns = torch::arange(32.0).reshape({4, 8}).slice(1, 0, 8, 2).t();
  const auto turned = std::make_shared<One>(group.rank() == 0 ? columns : columns.contiguous() * 2);
  DistributedDataParallel ddp{turned, group};  // one rank has gaps, the others have none
  require(torch::equal(turned->only, columns), "a rank without gaps agrees with one that has them");
  const torch::Tensor factor = torch::arange(16.0).reshape({4, 4});
  ddp.backward((ddp() * factor).sum() * (group.rank() + 1));
  require(are_close(turned->only.grad(), factor * mean), "elements of a turned part keep their places");

  const auto gapped = std::make_shared<One>(part_of(whole_of()).detach());
  require_error("writes parameters, and parameter 'only' has gaps in memory (strides 48, 1 of shape 10, 3)", [&] {
    DistributedDataParallel averaged{gapped, group, {}, dtrain::hooks::LocalSgd({.every = 2})};
  });
  DistributedDataParallel plain{gapped, group};
  torch::optim::SGD optimizer(gapped->parameters(), 0.1);
  require_error("libtorch::ShardedOptimizer writes parameters, and parameter 'only' has gaps in memory", [&] {
    ShardedOptimizer sharded{plain, optimizer};
  });
}

/// Tensors of no module, of which there are more every few steps: after each change another wrapper. The result has the
/// bits of programs that begin at each size with the tensors that the one before has saved.
inline void check_growth(const Group& group) {
  using Tensors = std::vector<dtrain::libtorch::ModuleTensor>;
  const auto trains = [&](const torch::Tensor& means, const torch::Tensor& scales) {
    DistributedDataParallel ddp{dtrain::libtorch::as_module({{"point.means", means}, {"scales", scales}}), group};
    torch::optim::Adam optimizer({means, scales}, 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const torch::Tensor x = torch::full({3}, group.rank() + step + 1.0);
      ddp.backward(((means * x).sum(1) * scales).square().mean());
      optimizer.step();
    }
  };
  const auto grown = [](const torch::Tensor& tensor) {
    return torch::cat({tensor, tensor * 0.5}).detach().requires_grad_();
  };
  torch::Tensor means = torch::full({4, 3}, 0.1 * (group.rank() + 1)).requires_grad_();
  torch::Tensor scales = torch::ones({4}).requires_grad_();
  torch::Tensor saved_means = means.detach().clone(), saved_scales = scales.detach().clone();
  for (int size = 0; size < 3; ++size) {
    trains(means, scales);
    std::stringstream file;
    torch::save(std::vector<torch::Tensor>{saved_means, saved_scales}, file);
    std::vector<torch::Tensor> loaded;
    torch::load(loaded, file);
    torch::Tensor begun_means = loaded[0].requires_grad_(), begun_scales = loaded[1].requires_grad_();
    trains(begun_means, begun_scales);
    require(torch::equal(begun_means, means) && torch::equal(begun_scales, scales),
            "a model that has grown has the bits of one that began at its size");
    means = grown(means);
    scales = grown(scales);
    saved_means = means.detach().clone();
    saved_scales = scales.detach().clone();
  }
  const auto module = dtrain::libtorch::as_module(Tensors{{"a.b", torch::zeros({2})}, {"c", scales}});
  require(module->named_parameters().contains("a_b") && !module->named_parameters()["a_b"].requires_grad(),
          "a tensor of no module keeps its requires_grad, and its name but for dots");
}

struct Odd : nn::Module {
  explicit Odd(int rank) {
    frozen = register_parameter("frozen", torch::full({3}, rank), false);
    deep = register_parameter("deep", torch::full({1, 1, 1, 1, 1, 1, 1, 1, 2}, rank + 1.0));
    complex = register_parameter("complex", torch::full({2}, rank + 1.0, torch::kComplexFloat));
    counts = register_buffer("counts", torch::full({3}, rank, torch::kInt16));
    waves = register_buffer("waves", torch::full({2}, rank, torch::kComplexDouble));
    wide = register_buffer("wide", torch::full({1, 2}, rank).expand({4, 2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x * deep.sum() * torch::real(complex * complex).sum(); }
  torch::Tensor frozen, deep, complex, counts, waves, wide;
};

inline void check_odd_tensors(const Group& group) {
  const auto net = std::make_shared<Odd>(group.rank());
  DistributedDataParallel ddp{net, group};
  for (const torch::Tensor& tensor : {net->frozen, net->counts, net->waves, net->wide})
    require(tensor.abs().sum().item<double>() == 0, "frozen parameters and buffers of any type are rank 0's");
  ddp.backward(ddp(torch::full({}, group.rank() + 1.0)));
  Odd alone(0);
  alone.forward(torch::full({}, (group.world_size() + 1) / 2.0)).backward();
  require(are_close(net->deep.grad(), alone.deep.grad()), "a parameter of nine dimensions is reduced");
  require(are_close(torch::view_as_real(net->complex.grad()), torch::view_as_real(alone.complex.grad())),
          "a complex parameter is reduced");
  require(!net->frozen.grad().defined(), "a frozen parameter has no gradient");
}

inline void check_sparse(const Group& group) {
  nn::Embedding net(nn::EmbeddingOptions(5, 2).sparse(true));
  DistributedDataParallel ddp{net, group};
  ddp.backward(ddp(torch::full({1}, group.rank(), torch::kInt64)).sum());
  const torch::Tensor expected = torch::zeros({5, 2});
  expected.narrow(0, 0, group.world_size()).fill_(1.0 / group.world_size());
  require(are_close(net->weight.grad(), expected), "a sparse gradient is reduced as a dense one");
}

inline void check_changes(const Group& group) {
  nn::Linear net(6, 2);
  DistributedDataParallel ddp{net, group};
  net->weight.set_data(torch::ones({2, 6}));
  ddp.backward(ddp(inputs_of(group.rank(), 0)).sum());
  torch::Tensor expected = torch::zeros({6});
  for (int rank = 0; rank < group.world_size(); ++rank)
    expected += inputs_of(rank, 0).sum(0) / group.world_size();
  require(are_close(net->weight.grad()[1], expected), "set_data with the same type and shape goes on");
  std::stringstream stream;
  torch::save(nn::Linear(6, 2), stream);
  torch::load(net, stream);
  net->zero_grad();
  ddp.backward(ddp(inputs_of(group.rank(), 0)).sum());
  require(are_close(net->weight.grad()[1], expected), "gradients are reduced after torch::load");
  net->zero_grad();
  inputs_of(0, 0).matmul(net->weight.t()).sum().backward();  // warns, once
  inputs_of(0, 0).matmul(net->weight.t()).sum().backward();
}

/// Collectives of tensors: any element type, and contiguous ones only.
inline void check_collectives(const Group& group) {
  const int ranks = group.world_size();
  const torch::Tensor sum = torch::full({2, 3}, group.rank() + 1.0);
  group.all_reduce(sum);
  require(torch::equal(sum, torch::full({2, 3}, ranks * (ranks + 1) / 2.0)), "a tensor is summed over the ranks");
  torch::Tensor last =
      torch::full({1, 2, 3, 4}, group.rank(), torch::kFloat64).contiguous(torch::MemoryFormat::ChannelsLast);
  group.all_reduce(dtrain::libtorch::view_of(last).flat(), dtrain::ReduceOp::max);
  require(last.min().item<double>() == ranks - 1, "the view of a tensor in another order is reduced");
  torch::Tensor flags = torch::full({3}, group.rank() == 0, torch::kBool);
  group.broadcast(flags, 0);
  require(flags.all().item<bool>(), "a tensor is broadcast");
  const torch::Tensor all = torch::empty({ranks, 2}, torch::kInt64);
  group.all_gather(torch::full({2}, group.rank(), torch::kInt64), all);
  require(torch::equal(all.select(1, 1), torch::arange(ranks)), "tensors are gathered");
  const torch::Tensor columns = torch::zeros({4, 4}).slice(1, 0, 2);
  require_error("a tensor is not dense memory", [&] { group.all_reduce(columns); });
  require_error("a tensor is not contiguous", [&] { group.all_reduce(last); });
  const torch::Tensor rows = torch::arange(6).reshape({2, 3}), gathered = torch::empty({ranks, 3, 2}, torch::kInt64);
  require_error("a tensor is not contiguous", [&] { group.all_gather(rows.t(), gathered); });
  group.all_gather(rows.t().contiguous(), gathered);
  require(torch::equal(gathered[0], rows.t()), "a transposed tensor is gathered from its copy");
  using dtrain::group::MovedWriteBuffer;
  using dtrain::group::WriteBuffer;
  static_assert(std::is_convertible_v<const torch::Tensor&, WriteBuffer>);
  static_assert(std::is_convertible_v<const torch::Tensor&, MovedWriteBuffer>);
  static_assert(!std::is_convertible_v<torch::Tensor, WriteBuffer>, "a temporary tensor would lose the result");
  static_assert(!std::is_convertible_v<torch::Tensor, MovedWriteBuffer>);
}

/// Elements whose sum or product is no element of their type.
inline void check_element_meanings(const Group& group) {
  using dtrain::ReduceOp;
  const int ranks = group.world_size();
  torch::Tensor any = torch::full({3}, group.rank() == 0, torch::kBool), all = any.clone();
  require_error("flags (elements of type bool) were given to a reduction by sum", [&] { group.all_reduce(any); });
  require_error("by average", [&] { group.reduce(any, 0, ReduceOp::average); });
  group.all_reduce(any, ReduceOp::max);
  group.all_reduce(all, ReduceOp::min);
  require(any.all().item<bool>() && all.any().item<bool>() == (ranks == 1), "flags are reduced by max and min");
  const torch::Tensor waves = torch::full({2}, c10::complex<float>(1, -1), torch::kComplexFloat);
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product})
    require_error("complex numbers cannot be reduced by ", [&] { group.all_reduce(waves, op); });
  group.all_reduce(waves);
  require(torch::equal(torch::view_as_real(waves).abs(), torch::full({2, 2}, ranks)), "complex numbers are summed");
  const torch::Tensor lazy = waves.conj(), negative = torch::_neg_view(torch::ones({2}));
  require(negative.is_neg() && lazy.is_conj(), "LibTorch computes conjugates late");
  require_error("that LibTorch has not computed yet", [&] { group.all_reduce(lazy); });
  require_error("that LibTorch has not computed yet", [&] { group.all_reduce(negative); });
}

/// A collective that writes to a tensor that autograd has saved makes the backward pass throw.
inline void check_written_tensors(const Group& group) {
  const torch::Tensor x = torch::ones({2}).requires_grad_(), kept = x.exp(), other = torch::empty({2});
  group.all_reduce(kept, other);
  kept.sum().backward({}, true);
  group.all_reduce(kept);
  try {
    kept.sum().backward();
  } catch (const c10::Error& error) {
    require(std::string_view(error.what()).find("modified by an inplace operation") != std::string_view::npos,
            "autograd names a write in place");
    return;
  }
  throw std::runtime_error("autograd used a tensor that a collective had written to");
}

/// Names of the state that is kept by an elastic job, and parameters whose elements lie in another order on a rank.
inline void check_element_orders(const Group& group) {
  const auto make = [](torch::MemoryFormat format) {
    return std::make_shared<One>(torch::zeros({2, 3, 4, 5}).contiguous(format));
  };
  const auto plain = make(torch::MemoryFormat::Contiguous), last = make(torch::MemoryFormat::ChannelsLast);
  const auto name = [](const std::shared_ptr<One>& net) {
    return dtrain::libtorch::training_state(net).written_in_commit().at(0).name;
  };
  require(name(plain) == "net.only" && name(last) == "net.only (strides 60 1 15 3)", "the order is kept with a name");
  DistributedDataParallel{last, group};
  const bool is_other = group.rank() > 0 && group.rank() == group.world_size() - 1;
  const auto net = is_other ? last : plain;
  if (group.world_size() > 1) {
    require_error("the elements of parameter 'only' lie in different orders on the ranks", [&] {
      DistributedDataParallel{net, group};
    });
  }
  require_error("module 1 of 2 is a null pointer", [&] {
    DistributedDataParallel{dtrain::libtorch::Modules{plain, nullptr}, group};
  });
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({1}, static_cast<std::int64_t>(index)), torch::zeros({1})};
  }
  torch::optional<std::size_t> size() const override { return 50; }
};

/// A DataLoader gives each rank the DistributedSampler's batches, with threads too, from the step that is set.
inline void check_loader(const Group& group) {
  const dtrain::DistributedSampler sampler{group, {.dataset_size = 50, .global_batch = 12, .seed = 3}};
  for (const std::size_t workers : {0U, 2U}) {
    dtrain::libtorch::BatchSampler batches(sampler);
    const auto loader =
        torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()), batches,
                                      torch::data::DataLoaderOptions(batches.batch_size()).workers(workers));
    for (const std::uint64_t epoch : {0U, 1U, 5U}) {
      const std::size_t first = epoch == 5 ? 2 : 0;
      batches.set_epoch(epoch, first);
      const auto expected = sampler.batches(epoch);
      std::size_t step = first;
      for (auto& batch : *loader) {
        const torch::Tensor samples = batch.data.flatten();
        const auto wanted = expected[step++];
        require(samples.numel() == static_cast<std::int64_t>(wanted.size()), "a batch has the sampler's size");
        for (std::size_t i = 0; i < wanted.size(); ++i)
          require(samples[static_cast<std::int64_t>(i)].item<std::int64_t>() == static_cast<std::int64_t>(wanted[i]),
                  "a batch has the sampler's samples");
      }
      require(step == expected.size(), "an epoch has the sampler's steps");
    }
  }
  dtrain::libtorch::BatchSampler batches(sampler);
  require_error("give make_data_loader batches.batch_size()", [&] { batches.next(13); });
  torch::serialize::OutputArchive archive;
  require_error("give save_checkpoint and load_checkpoint a SamplerPosition", [&] { batches.save(archive); });
  batches.set_epoch(0, sampler.steps_per_epoch());
  require_error("an epoch was to begin with step 6 of 5", [&] { batches.set_epoch(0, 6); });
}

/// One module is wrapped twice, one wrapper after the other.
inline void check_end(const Group& group) {
  nn::Sequential net = two_layers(0);
  for (int wrapper = 0; wrapper < 2; ++wrapper) {
    DistributedDataParallel ddp{net, group};
    net->zero_grad();
    ddp.backward(loss_of(ddp(inputs_of(group.rank(), wrapper))));
  }
  const torch::Tensor before = net->parameters()[0].grad().clone();
  loss_of(net->forward(inputs_of(0, 0))).backward();
  require(!torch::equal(before, net->parameters()[0].grad()), "the network trains on alone");
}

}  // namespace libtorch_probe
