// Holds dtrain::libtorch::SyncBatchNormImpl to BatchNorm over the samples of all ranks:
//   sync_batch_norm_probe --nproc-per-node=N           rank 0 prints "holds: ..." for each check
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include "expectations.hpp"

namespace {

using libtorch_probe::Policy;
using libtorch_probe::require;
using libtorch_probe::require_error;

void require_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  if (!torch::allclose(a, b, 1e-6, 1e-6)) throw std::runtime_error("not BatchNorm's within 1e-6: " + what);
}

struct Member : torch::nn::Module {
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
};

void check_conversion(const dtrain::ProcessGroup<Policy>& group) {
  torch::nn::Sequential net(torch::nn::BatchNorm2d(3), torch::nn::ReLU());
  const std::vector<torch::Tensor> before = net->parameters();
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  if (net->parameters().size() != 2 || !net->parameters()[0].is_same(before[0]))
    throw std::runtime_error("the conversion lost a parameter");
  dtrain::libtorch::DistributedDataParallel ddp{net, group, {}, dtrain::libtorch::BufferPolicy::none};
  const torch::Tensor own = torch::full({2, 3, 4, 5}, group.rank());
  ddp.backward(ddp(own).sum());
  const torch::Tensor mean = torch::full({3}, 0.1 * (group.world_size() - 1) / 2.0);
  for (const auto& item : net->named_buffers()) {
    if (item.key() == "0.running_mean") return require_close(item.value(), mean, "the converted module's mean");
  }
  throw std::runtime_error("the conversion lost the running mean");
}

void check_refused_member(const dtrain::ProcessGroup<Policy>& group) {
  Member member;
  try {
    dtrain::libtorch::convert_sync_batchnorm(member, group);
  } catch (const dtrain::Error& error) {
    if (std::string_view(error.what()).find("the BatchNorm 'norm' is a member of a module") == std::string_view::npos)
      throw;
    return;
  }
  throw std::runtime_error("a BatchNorm that stays was not named");
}

/// Where a gradient's own derivative is asked for, whether the gradient that comes back depends on the input or not.
void check_second_derivative(const dtrain::ProcessGroup<Policy>& group) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  const torch::Tensor weights = torch::randn({3, 4});
  for (const bool is_linear : {true, false}) {
    const torch::Tensor x = torch::randn({3, 4}).requires_grad_();
    const auto first = [&](bool create_graph) {
      const torch::Tensor output = net->forward(x);
      const torch::Tensor loss = is_linear ? (output * weights).sum() : output.pow(3).sum();
      return torch::autograd::grad({loss}, {x}, {}, true, create_graph)[0];
    };
    const torch::Tensor gradient = first(true);
    require_close(gradient, first(false), "a gradient with a graph");
    require_error("SyncBatchNorm has no second derivative", [&] { gradient.square().sum().backward(); });
  }
  net->eval();
  const torch::Tensor x = torch::randn({3, 4}).requires_grad_();
  torch::autograd::grad({net->forward(x).pow(3).sum()}, {x}, {}, true, true)[0].square().sum().backward();
}

/// The output outlives the module.
void check_lifetime(const dtrain::ProcessGroup<Policy>& group) {
  torch::Tensor loss;
  {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    dtrain::libtorch::convert_sync_batchnorm(*net, group);
    loss = net->forward(torch::randn({3, 4})).square().sum();
  }
  const std::vector<torch::Tensor> reused(20, torch::full({64}, 1));  // of the memory that the module leaves
  loss.backward();
}

/// 16-bit samples with f32 parameters, and all in 16 bits: the output is BatchNorm's.
void check_narrow(const dtrain::ProcessGroup<Policy>& group) {
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kFloat16}) {
    for (const bool is_all : {false, true}) {
      dtrain::libtorch::SyncBatchNorm<Policy> mine(torch::nn::BatchNormOptions(3), group);
      torch::nn::BatchNorm2d serial(3);
      if (is_all) mine->to(dtype);
      torch::Tensor x = (torch::linspace(-3, 5, 120).reshape({2, 3, 4, 5})).to(dtype);  // the same on all ranks
      torch::Tensor wide = x.to(torch::kFloat32).requires_grad_();
      x.requires_grad_();
      const torch::Tensor output = mine(x), expected = serial(wide);
      if (output.scalar_type() != dtype) throw std::runtime_error("the output has another type than the input");
      if (!torch::allclose(output.to(torch::kFloat32), expected, 1e-2, 1e-2))
        throw std::runtime_error("the output of 16 bits is another one");
      output.to(torch::kFloat32).square().sum().backward();
      expected.square().sum().backward();
      if (x.grad().scalar_type() != dtype || mine->weight.grad().scalar_type() != mine->weight.scalar_type())
        throw std::runtime_error("a gradient has another type than its tensor");
      if (!torch::allclose(mine->weight.grad().to(torch::kFloat32), serial->weight.grad(), 2e-2, 1e-1))
        throw std::runtime_error("the weight's gradient is another one");
    }
  }
}

/// The sums of a backward pass on a GPU, of 16-bit inputs, are those of f32.
void check_sums_in_f32() {
  torch::manual_seed(11);
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kHalf}) {
    const torch::Tensor input = (torch::randn({5, 3, 4, 5}) * 2 + 1).to(dtype);
    const torch::Tensor gradient = torch::randn({5, 3, 4, 5}).to(dtype);
    const torch::Tensor wide = input.to(torch::kFloat64), mean = wide.mean(std::vector<std::int64_t>{0, 2, 3});
    const auto [sum, products] = dtrain::libtorch::detail::sums_in_f32(gradient, input, mean.to(torch::kFloat32));
    const torch::Tensor right = gradient.to(torch::kFloat64) * (wide - mean.view({1, 3, 1, 1}));
    const std::vector<std::int64_t> others{0, 2, 3};
    require(sum.scalar_type() == torch::kFloat32 && products.scalar_type() == torch::kFloat32, "the sums are f32");
    require(torch::allclose(sum.to(torch::kFloat64), gradient.to(torch::kFloat64).sum(others), 1e-5, 1e-4),
            "the sum of 16-bit gradients is not rounded to 16 bits");
    require(torch::allclose(products.to(torch::kFloat64), right.sum(others), 1e-5, 1e-4),
            "the sum of products of 16-bit numbers is not rounded to 16 bits");
  }
}

void check_clone(const dtrain::ProcessGroup<Policy>& group) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
  dtrain::libtorch::convert_sync_batchnorm(*net, group);
  net->forward(torch::ones({3, 4}) * group.rank() + torch::arange(12).reshape({3, 4}));
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  const torch::Tensor own = torch::arange(8.0).reshape({2, 4}) * (group.rank() + 1);
  require_close(copy->forward(own), net->forward(own), "a clone's output");
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    if (copy->parameters()[i].is_same(net->parameters()[i])) throw std::runtime_error("a clone shares a parameter");
  }
  for (std::size_t i = 0; i < net->buffers().size(); ++i) {
    if (copy->buffers()[i].data_ptr() == net->buffers()[i].data_ptr())
      throw std::runtime_error("a clone shares a buffer");
    require_close(copy->buffers()[i].to(torch::kFloat32), net->buffers()[i].to(torch::kFloat32), "a clone's buffers");
  }
}

struct Block : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  dtrain::libtorch::SyncBatchNorm<Policy> norm =
      register_module("norm", dtrain::libtorch::SyncBatchNorm<Policy>(torch::nn::BatchNormOptions(4)));
};

/// Members of one's own, and children of lists.
void check_containers(const dtrain::ProcessGroup<Policy>& group) {
  using dtrain::libtorch::SyncBatchNormImpl;
  const torch::Tensor own = torch::arange(8.0).reshape({2, 4}).square() + group.rank();
  const auto block = std::make_shared<Block>();
  torch::nn::BatchNorm1d alone(4);
  require_close(block->forward(own), alone(own), "a SyncBatchNorm without a group, which is a BatchNorm");
  require_close(block->norm->running_var, alone->running_var, "its running variance");
  torch::nn::ModuleList list(torch::nn::BatchNorm1d(4), torch::nn::Sequential(torch::nn::BatchNorm1d(4)));
  torch::nn::ModuleDict dictionary(torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>(
      {{"block", block}, {"norm", torch::nn::BatchNorm1d(4).ptr()}}));
  const torch::Tensor weight = list[0]->parameters()[0];
  dtrain::libtorch::convert_sync_batchnorm(*list, group);
  dtrain::libtorch::convert_sync_batchnorm(*dictionary, group);
  auto* const first = list[0]->as<SyncBatchNormImpl<Policy>>();
  auto* const named = dictionary["norm"]->as<SyncBatchNormImpl<Policy>>();
  if (first == nullptr || named == nullptr || !first->weight.is_same(weight) || !list->parameters()[0].is_same(weight))
    throw std::runtime_error("the children of a ModuleList or ModuleDict were not replaced");
  const torch::Tensor expected = list[1]->as<torch::nn::Sequential>()->forward(own);
  require_close(first->forward(own), expected, "a child of a ModuleList");
  require_close(named->forward(own), expected, "a child of a ModuleDict");
  require_close(block->forward(own), expected, "a member");
  dtrain::libtorch::SyncBatchNorm given(4, group);
  require_close(given(own), expected, "a holder of features and group");
}

/// A container whose members are children before its elements.
template <class Member>
struct Tail : torch::nn::SequentialImpl {
  Tail() {
    member = register_module("member", Member(4, 4));
    push_back(torch::nn::BatchNorm1d(4));
    push_back(torch::nn::ReLU());
  }
  Member member{nullptr};
};
struct Norm : torch::nn::BatchNorm1d {
  using torch::nn::BatchNorm1d::BatchNorm1d;
  Norm(int features, int) : torch::nn::BatchNorm1d(features) {}
};

void check_members_of_containers(const dtrain::ProcessGroup<Policy>& group) {
  using dtrain::libtorch::SyncBatchNormImpl;
  Tail<torch::nn::Linear> tail;
  dtrain::libtorch::convert_sync_batchnorm(tail, group);
  if (tail[0]->as<SyncBatchNormImpl<Policy>>() == nullptr || tail[1]->as<torch::nn::ReLU>() == nullptr ||
      tail.children()[1]->as<SyncBatchNormImpl<Policy>>() == nullptr)
    throw std::runtime_error("the element of a container with a member was not replaced");
  Tail<Norm> other;
  require_error("the BatchNorm 'member' is a member of a module",
                [&] { dtrain::libtorch::convert_sync_batchnorm(other, group); });
}

/// Rank r has r + 2 samples.
int probe(dtrain::ProcessGroup<Policy> group, dtrain::Arguments) {
  torch::set_num_threads(1);
  torch::nn::BatchNorm2d serial(3);
  dtrain::libtorch::SyncBatchNormImpl<Policy> mine(torch::nn::BatchNormOptions(3), group);
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(7 + static_cast<unsigned>(step));
    std::vector<torch::Tensor> batches, factors;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      batches.push_back(torch::randn({rank + 2, 3, 4, 5}) * (rank + 1) + rank);
      factors.push_back(torch::randn({rank + 2, 3, 4, 5}) * 0.01);
    }
    torch::Tensor all = torch::cat(batches).requires_grad_();
    serial->zero_grad();
    const torch::Tensor expected = serial->forward(all);
    (expected * torch::cat(factors)).sum().backward();

    const std::size_t me = static_cast<std::size_t>(group.rank());
    torch::Tensor own = batches[me].clone().requires_grad_();
    mine.zero_grad();
    const torch::Tensor output = mine.forward(own);
    (output * factors[me]).sum().backward();
    std::int64_t before = 0;
    for (int rank = 0; rank < group.rank(); ++rank)
      before += rank + 2;
    require_close(output, expected.narrow(0, before, own.size(0)), "the output");
    require_close(own.grad(), all.grad().narrow(0, before, own.size(0)), "the input's gradient");
    const torch::Tensor parameters = torch::cat({mine.weight.grad(), mine.bias.grad()});
    group.all_reduce(dtrain::libtorch::view_of(parameters).flat(), dtrain::ReduceOp::sum);
    require_close(parameters, torch::cat({serial->weight.grad(), serial->bias.grad()}), "the parameters' gradients");
    require_close(mine.running_mean, serial->running_mean, "the running mean");
    require_close(mine.running_var, serial->running_var, "the running variance");
  }
  serial->eval();
  mine.eval();
  const torch::Tensor sample = torch::ones({2, 3, 4, 5});
  require_close(mine.forward(sample), serial->forward(sample), "evaluation");
  check_conversion(group);
  check_refused_member(group);
  check_second_derivative(group);
  check_lifetime(group);
  check_narrow(group);
  check_sums_in_f32();
  check_clone(group);
  check_containers(group);
  check_members_of_containers(group);
  if (group.rank() == 0) std::printf("holds: SyncBatchNorm is BatchNorm over all samples\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, probe);
}
