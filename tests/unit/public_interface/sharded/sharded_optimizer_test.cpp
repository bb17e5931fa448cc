// ShardedOptimizer: the same weights as with all of the state on every rank, norms, scaled losses, and misuse.

#include "unit/public_interface/prelude.hpp"

using namespace whole_optimizer;
using dtrain::StepGradients;
using dtrain::StepInfo;

namespace sharded_optimizer_test {

TEST_CASE("every rank has the weights that the optimizer with all of its state gives, to the bit") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      run_well(ranks, [&](const Group& group) {
        const dtrain::DdpOptions options{.bucket_bytes = bucket_bytes};
        CHECK(wrong_steps<Model>(group, optimizers::AdamW{.rate = 0.01F}, options, false) == 0);
        CHECK(wrong_steps<BindingModel>(group, optimizers::Adam{.weight_decay = 0.1F}, options, true) == 0);
        CHECK(wrong_steps<BindingModel>(group, optimizers::Momentum{.rate = 0.1F, .nesterov = true}, options, false) ==
              0);
        CHECK(wrong_steps<Model>(
                  group, optimizers::Sgd{.rate = 0.1F, .weight_decay = 0.01F},
                  {.bucket_bytes = bucket_bytes, .reduce_op = dtrain::ReduceOp::sum, .deterministic = true},
                  true) == 0);
      });
    }
  }
}

TEST_CASE("in stage 2 too, whether gradients become ready in the order of the buckets or against it") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      run_well(ranks, [&](const Group& group) {
        const dtrain::DdpOptions in_order{.bucket_bytes = bucket_bytes};
        const dtrain::DdpOptions against{.bucket_bytes = bucket_bytes, .reorder_gradients = false};
        CHECK(wrong_steps<Model>(group, optimizers::AdamW{.rate = 0.01F}, in_order, false, {.stage = 2}) == 0);
        CHECK(wrong_steps<Model>(group, optimizers::Adam{.weight_decay = 0.1F}, in_order, true, {.stage = 2}) == 0);
        CHECK(wrong_steps<Model>(group, optimizers::Momentum{.rate = 0.1F}, against, true, {.stage = 2}) == 0);
      });
    }
  }
}

/// A model whose gradients come with ready(i, view, {}) alone.
Model without_gradient_memory(const std::vector<std::size_t>& model_sizes) {
  Model model(model_sizes);
  model.gradients.clear();
  for (dtrain::Parameter& parameter : model.list)
    parameter.gradient.data = nullptr;
  return model;
}

/// Gradients of all parameters in the memory of the largest one: what ready(i) has copied is overwritten.
TEST_CASE("in stage 2 the model may use a gradient's memory again when its ready() has returned") {
  for (const bool from_first : {false, true}) {  // from the first: against the order of the buckets
    run_well(3, [&](const Group& group) {
      Model whole(sizes);
      Model sharded = without_gradient_memory(sizes);
      fill_values(whole);
      fill_values(sharded);
      const optimizers::AdamW rule{.rate = 0.01F};
      WholeOptimizer reference(rule);
      DistributedDataParallel expected{whole, group, {.bucket_bytes = 3000}};
      DistributedDataParallel ddp{sharded, group, {.bucket_bytes = 3000}};
      ShardedOptimizer optimizer{ddp, rule, ShardedOptions{.stage = 2}};
      std::vector<float> scratch(4096);
      for (int step = 0; step < 4; ++step) {
        expected.backward(backward(whole, step, group.rank()));
        reference.step(whole);
        const auto pass = [&](Ready ready) {
          for (std::size_t n = 0; n < sizes.size(); ++n) {
            const std::size_t i = from_first ? n : sizes.size() - 1 - n;
            for (std::size_t k = 0; k < sizes[i]; ++k)
              scratch[k] = element(step, group.rank(), i, k);
            ready(i, dtrain::tensor_view(scratch.data(), {static_cast<std::int64_t>(sizes[i])}), {});
          }
        };
        ddp.backward(pass, optimizer);
        CHECK(equal_bits(whole.values, sharded.values));
      }
    });
    CAPTURE(from_first);
  }
}

/// Steps of two optimizers, one after the other.
template <class AnyModel>
int wrong_successive_steps(const Group& group, Progress progress, const ShardedOptions& stage) {
  AnyModel whole(sizes);
  AnyModel sharded(sizes);
  fill_values(whole);
  fill_values(sharded);
  const optimizers::AdamW rule{.rate = 0.01F};
  WholeOptimizer reference(rule);
  const dtrain::DdpOptions options{.bucket_bytes = 3000, .progress = progress};
  DistributedDataParallel expected{whole, group, options};
  DistributedDataParallel ddp{sharded, group, options};
  int wrong = 0;
  for (int round = 0; round < 2; ++round) {  // the second optimizer begins where the first one ends
    ShardedOptimizer optimizer{ddp, rule, stage};
    if (round == 1) reference = WholeOptimizer(rule);
    for (int step = 0; step < 4; ++step) {
      expected.backward(backward(whole, step, group.rank()));
      reference.step(whole);
      ddp.backward(backward(sharded, step, group.rank()), optimizer);
      wrong += equal_bits(whole.values, sharded.values) ? 0 : 1;
    }
  }
  return wrong;
}

TEST_CASE("weights that are stored after the backward pass, or during it, have the same bits") {
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    run_well(3, [&](const Group& group) {
      for (const bool frees : {false, true}) {
        CHECK(wrong_successive_steps<BindingModel>(group, progress, {.early_update = frees}) == 0);
        CHECK(wrong_successive_steps<Model>(group, progress, {.stage = 2, .early_update = frees}) == 0);
      }
    });
  }
}

/// Heap that the construction of an optimizer takes, as the mean of all ranks.
template <class Construct>
double heap_of(const Group& group, Construct construct) {
  group.barrier();
  const std::size_t before = support::allocated_bytes.load();
  group.barrier();
  construct();
  group.barrier();
  const std::size_t after = support::allocated_bytes.load();
  group.barrier();  // no rank goes on before all have read it
  return static_cast<double>(after - before) / group.world_size();
}

TEST_CASE("in stage 2 gradients take their share and the two largest buckets side by side, and training no heap") {
  // Gradients of 4 MB in buckets of 25 parameters of 4 kB.
  const std::vector<std::size_t> many(1000, 1000);
  constexpr double all = 1000 * 4032;  // with padding to a cache line
  constexpr std::size_t bucket = 25 * 4032;
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const auto places = static_cast<std::size_t>(ranks);
    std::vector<std::size_t> bytes(places);
    std::vector<std::size_t> arenas(places);
    std::vector<std::size_t> allocated_in_steps(places, 1);
    std::vector<double> heap(places);
    run_well(ranks, [&](const Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      Model model(many);
      DistributedDataParallel ddp{
          model,
          group,
          {.bucket_bytes = bucket, .first_bucket_bytes = bucket, .progress = dtrain::stream::host::Progress::caller}};
      const double stage_1 = heap_of(group, [&] { const ShardedOptimizer one{ddp, optimizers::Sgd{}}; });
      std::optional<decltype(ddp)::Sharded<optimizers::Sgd>> optimizer;
      heap[rank] =
          heap_of(group, [&] { optimizer.emplace(ddp, optimizers::Sgd{}, ShardedOptions{.stage = 2}); }) - stage_1;
      bytes[rank] = optimizer->gradient_bytes();
      arenas[rank] = ddp.plan().arena_bytes;
      const auto pass = [](Ready ready) { all_ready(ready, 1000); };
      for (int step = 0; step < 3; ++step)
        ddp.backward(pass, *optimizer);
      const std::size_t before = support::allocations_of_this_thread;
      for (int step = 0; step < 5; ++step)
        ddp.backward(pass, *optimizer);
      allocated_in_steps[rank] = support::allocations_of_this_thread - before;
      bytes[rank] = std::max(bytes[rank], optimizer->gradient_bytes());
    });
    CHECK(allocated_in_steps == std::vector<std::size_t>(places, 0));
    CHECK(arenas == std::vector<std::size_t>(places, 2 * bucket));
    for (std::size_t rank = 0; rank < places; ++rank) {
      CHECK(static_cast<double>(bytes[rank]) >= all / ranks + 2 * bucket);
      CHECK(static_cast<double>(bytes[rank]) <= 1.02 * (all / ranks + 2 * bucket));
      CHECK(heap[rank] >= all / ranks);
      CHECK(heap[rank] <= 1.02 * all / ranks + 1000 * 128);  // and tables of the parameters
    }
  }
}

TEST_CASE("a rank keeps its share of the state, and what does not divide") {
  // The bucket has 10 elements and 6 of padding, then 3000 and 8.
  const std::vector<std::vector<std::size_t>> shares{
      {3010}, {10 + 1488 + 8, 1504 + 8}, {10 + 992, 1008, 1000}, {10 + 736 + 8, 752 + 8, 752 + 8, 752 + 8}};
  for (const std::vector<std::size_t>& share : shares) {
    run_well(static_cast<int>(share.size()), [&](const Group& group) {
      Model model({3000, 10});
      DistributedDataParallel ddp{model, group};
      const ShardedOptimizer optimizer{ddp, optimizers::Adam{}};
      CHECK(optimizer.state_bytes() == 2 * sizeof(float) * share[static_cast<std::size_t>(group.rank())]);
    });
    CAPTURE(share.size());
  }
}

/// Weights decay by half; the first element of the parameter tells its number.
struct Halving {
  void operator()(std::span<float> weights, std::span<const float>, const StepInfo& info) const {
    for (float& weight : weights)
      weight = weight / 2 + static_cast<float>(info.parameter) + static_cast<float>(info.step);
  }
};

TEST_CASE("a rule of one's own gets the parameter and the step; its members may change between steps") {
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    fill_values(model);
    std::vector<std::vector<float>> expected = model.values;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, Halving{}};
    for (int step = 1; step <= 3; ++step) {
      ddp.backward(backward(model, step, group.rank()), optimizer);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        for (float& one : expected[i])
          one = one / 2 + static_cast<float>(i) + static_cast<float>(step);
      }
      CHECK(equal_bits(model.values, expected));
    }
    Model other(sizes);
    DistributedDataParallel plain{other, group};
    ShardedOptimizer sgd{plain, optimizers::Sgd{.rate = 0}};
    plain.backward(backward(other, 0, group.rank()), sgd);
    CHECK(other.values[1][5] == 0);
    sgd.rule().rate = 1;
    plain.backward(backward(other, 0, group.rank()), sgd);
    CHECK(other.values[1][5] == -(element(0, 0, 1, 5) + element(0, 1, 1, 5)) / 2);
  });
}

/// LAMB as its paper writes it, in f64, with all of the state.
class LambInF64 {
 public:
  explicit LambInF64(optimizers::Lamb rule) : rule_(rule) {
    for (const std::size_t size : sizes) {
      means_.emplace_back(size);
      squares_.emplace_back(size);
    }
  }

  /// @param factor of the gradients
  void step(Model& model, double factor) {
    ++step_;
    for (std::size_t i = 0; i < model.list.size(); ++i) {
      const auto gradient = model.list[i].gradient.as<float>();
      std::vector<double> update(gradient.size());
      double weights_norm = 0;
      double update_norm = 0;
      for (std::size_t k = 0; k < gradient.size(); ++k) {
        const double g = factor * gradient[k];
        const double w = model.values[i][k];
        means_[i][k] = rule_.beta1 * means_[i][k] + (1 - rule_.beta1) * g;
        squares_[i][k] = rule_.beta2 * squares_[i][k] + (1 - rule_.beta2) * g * g;
        const double mean = means_[i][k] / (1 - std::pow(rule_.beta1, step_));
        const double square = squares_[i][k] / (1 - std::pow(rule_.beta2, step_));
        update[k] = mean / (std::sqrt(square) + rule_.epsilon) + rule_.weight_decay * w;
        weights_norm += w * w;
        update_norm += update[k] * update[k];
      }
      const double ratio = weights_norm > 0 && update_norm > 0 ? std::sqrt(weights_norm / update_norm) : 1;
      for (std::size_t k = 0; k < update.size(); ++k)
        model.values[i][k] = static_cast<float>(model.values[i][k] - rule_.rate * ratio * update[k]);
    }
  }

 private:
  optimizers::Lamb rule_;
  std::vector<std::vector<double>> means_;
  std::vector<std::vector<double>> squares_;
  int step_ = 0;
};

/// The largest difference between the weights of LAMB on shards and those of LambInF64, after each of some steps.
double largest_difference_of_lamb(const Group& group, int stage, std::size_t bucket_bytes, bool is_inspected) {
  const optimizers::Lamb rule{.rate = 0.02F, .weight_decay = 0.1F};
  Model whole(sizes);
  Model sharded(sizes);
  fill_values(whole);
  std::fill(whole.values[4].begin(), whole.values[4].end(), 0.0F);  // no norm to divide by
  for (std::size_t i = 0; i < sizes.size(); ++i)
    std::copy(whole.values[i].begin(), whole.values[i].end(), sharded.values[i].begin());
  LambInF64 reference(rule);
  DistributedDataParallel expected{whole, group, {.bucket_bytes = bucket_bytes}};
  DistributedDataParallel ddp{sharded, group, {.bucket_bytes = bucket_bytes}};
  ShardedOptimizer optimizer{ddp, rule, {.stage = stage, .early_update = bucket_bytes == 3000}};
  double largest = 0;
  for (int step = 0; step < 5; ++step) {
    expected.backward(backward(whole, step, group.rank()));
    reference.step(whole, is_inspected ? 0.25 : 1);
    if (is_inspected) {
      ddp.backward(backward(sharded, step, group.rank()), optimizer, {.inspect = [](StepGradients& gradients) {
                     gradients.scale(0.25);
                     return true;
                   }});
    } else {
      ddp.backward(backward(sharded, step, group.rank()), optimizer);
    }
    largest = std::max(largest, front_test::largest_difference(joined(whole.values), joined(sharded.values)));
  }
  return largest;
}

TEST_CASE("LAMB scales a step by norms of whole parameters, however they are cut into shards") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      std::vector<double> differences(static_cast<std::size_t>(4 * ranks), 1);
      run_well(ranks, [&](const Group& group) {
        const auto place = static_cast<std::size_t>(4 * group.rank());
        differences[place] = largest_difference_of_lamb(group, 1, bucket_bytes, false);
        differences[place + 1] = largest_difference_of_lamb(group, 1, bucket_bytes, true);
        differences[place + 2] = largest_difference_of_lamb(group, 2, bucket_bytes, false);
        differences[place + 3] = largest_difference_of_lamb(group, 2, bucket_bytes, true);
      });
      for (const double difference : differences)
        CHECK(difference < 2e-6);
    }
  }
}

/// Its measure() throws on one rank.
struct FailingNorms {
  bool fails = false;
  struct State {
    std::span<float> sums;
  };
  dtrain::ParameterNorms measure(std::span<const float>, std::span<const float>, State, const StepInfo&) const {
    if (fails) throw std::runtime_error("these norms cannot be measured");
    return {};
  }
  void operator()(std::span<float>, std::span<const float>, State, const StepInfo&) const {}
};

TEST_CASE("an exception of a rule's measure() ends the job with its text") {
  expect_ends(2, {"these norms cannot be measured"}, [&](const Group& group) {
    Model model({3000, 2000, 1000});
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
    ShardedOptimizer optimizer{ddp, FailingNorms{group.rank() == 1}};
    ddp.backward(backward(model, 0, group.rank()), optimizer);
    group.barrier();  // the other rank may have finished its step
  });
}

template <class AnyModel>
void check_clipping(const ShardedOptions& stage) {
  for (const std::size_t bucket_bytes : {std::size_t{3000}, std::size_t{1} << 20}) {
    run_well(3, [&](const Group& group) {
      Model whole(sizes);
      AnyModel sharded(sizes);
      fill_values(whole);
      fill_values(sharded);
      const optimizers::Sgd rule{.rate = 1};
      WholeOptimizer reference(rule);
      DistributedDataParallel expected{whole, group, {.bucket_bytes = bucket_bytes}};
      DistributedDataParallel ddp{sharded, group, {.bucket_bytes = bucket_bytes}};
      ShardedOptimizer optimizer{ddp, rule, stage};
      for (int step = 0; step < 5; ++step) {
        if (step == 1) {  // without a norm
          expected.backward(backward(whole, step, group.rank()));
          reference.step(whole);
          ddp.backward(backward(sharded, step, group.rank()), optimizer);
          continue;
        }
        const bool updates = step != 2;
        expected.backward(backward(whole, step, group.rank()), {.clip_norm = 5});
        const double before = expected.gradient_norm().before_clipping;
        if (updates) reference.step(whole);
        double norm = 0;
        dtrain::StepOptions options{.clip_norm = 5};
        if (step > 1) {
          options.inspect = [&](StepGradients& gradients) {
            norm = gradients.gradient_norm().norm;
            return updates;
          };
        }
        CHECK(ddp.backward(backward(sharded, step, group.rank()), optimizer, options) == updates);
        if (step > 1) {
          CHECK(norm == ddp.gradient_norm().before_clipping);
        } else {
          norm = ddp.gradient_norm().before_clipping;
        }
        CHECK((std::abs(norm - before) <= 1e-9 * before && norm > 5));
        double smallest = norm;
        group.all_reduce(std::span(&smallest, 1), dtrain::ReduceOp::min);
        CHECK(smallest == norm);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          CHECK(std::ranges::equal(whole.values[i], sharded.values[i],
                                   [](float one, float other) { return std::abs(one - other) <= 1e-6F; }));
        }
      }
      CHECK(optimizer.steps() == 4);
    });
  }
}

TEST_CASE("the norm of all gradients is known before the update, equal on all ranks, and clips") {
  for (const bool frees : {false, true}) {  // weights are not freed before all gradients are seen
    check_clipping<BindingModel>({.early_update = frees});
    check_clipping<Model>({.stage = 2, .early_update = frees});
  }
}

TEST_CASE("a step with an infinite gradient on one rank changes nothing on any, and lowers the loss's scale") {
  std::vector<std::vector<float>> by_function;
  for (const int form : {0, 1, 2}) {
    CAPTURE(form);
    run_well(2, [&](const Group& group) {
      Model model(sizes);
      fill_values(model);
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
      ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
      dtrain::LossScaler scaler({.initial_scale = 1024});
      for (int step = 0; step < 3; ++step) {
        const std::vector<std::vector<float>> before = model.values;
        const auto pass = [&](Ready ready) {
          if (step == 1 && group.rank() == 1) {
            write_gradients(model, ready, [](std::size_t i, std::size_t) {
              return i == 4 ? std::numeric_limits<float>::infinity() : 1.0F;
            });
          } else {
            backward(model, step, group.rank())(ready);
          }
        };
        const auto divides = [&](StepGradients& gradients) {
          if (const double factor = scaler.next_factor(gradients.gradient_norm().finite); factor != 0) {
            gradients.scale(factor);
            return true;
          }
          return false;
        };
        bool updates = false;
        if (form == 0) updates = ddp.backward(pass, optimizer, {.inspect = divides});
        if (form == 1) updates = ddp.backward(pass, optimizer, {.scaler = &scaler});
        if (form == 2) updates = ddp.backward(pass, optimizer, {.clip_norm = 1e-9, .scaler = &scaler});
        CHECK(updates == (step != 1));
        CHECK(equal_bits(before, model.values) == (step == 1));
        CHECK(scaler.scale() == (step == 0 ? 1024.0F : 512.0F));
      }
      CHECK(optimizer.steps() == 2);
      if (form == 0 && group.rank() == 0) by_function = model.values;
      if (form == 1) CHECK(equal_bits(by_function, model.values));
      if (form == 2) CHECK_FALSE(equal_bits(by_function, model.values));
    });
  }
}

template <class Half>
int wrong_half_steps(const Group& group, const ShardedOptions& stage) {
  int wrong = 0;
  front_test::BasicModel<Half> whole(sizes);
  front_test::BasicModel<Half> sharded(sizes);
  fill_values(whole);
  fill_values(sharded);
  DistributedDataParallel expected{whole, group, {.bucket_bytes = 3000}};
  DistributedDataParallel ddp{sharded, group, {.bucket_bytes = 3000}};
  dtrain::MasterWeights master{whole};
  const optimizers::Momentum rule{.rate = 1e-3F};
  std::vector<float> velocity(master.values().size());
  ShardedOptimizer optimizer{ddp, rule, stage};
  for (int step = 0; step < 5; ++step) {
    expected.backward(backward(whole, step, group.rank()), {.master = &master});
    rule(master.values(), master.gradients(), {velocity}, StepInfo{});
    master.store();
    ddp.backward(backward(sharded, step, group.rank()), optimizer);
    wrong += equal_bits(whole.values, sharded.values) ? 0 : 1;
  }
  return wrong;
}

TEST_CASE("weights of 16 bits are updated in f32, as MasterWeights does") {
  run_well(2, [&](const Group& group) {
    for (const bool frees : {false, true}) {
      CHECK(wrong_half_steps<dtrain::bfloat16>(group, {.early_update = frees}) == 0);
      CHECK(wrong_half_steps<dtrain::float16>(group, {.stage = 2, .early_update = frees}) == 0);
    }
  });
}

void check_accumulation(int stage) {
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}, {.stage = stage}};
    {
      const auto accumulating = ddp.no_sync();
      ddp.backward([&](Ready ready) { fill_gradients(model, ready, 1.0F); });
      CHECK_THROWS_WITH_AS(ddp.backward([](Ready) {}, optimizer), doctest::Contains("under no_sync()"), dtrain::Error);
    }
    ddp.backward(
        [&](Ready ready) {
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            for (float& one : model.gradients[i])
              one += 2;
            ready(i);
          }
        },
        optimizer);
    for (const std::vector<float>& values : model.values)
      CHECK(values == std::vector<float>(values.size(), -3));
  });
}

TEST_CASE("gradients of several passes are added before the update") {
  for (const int stage : {1, 2})
    check_accumulation(stage);
}

TEST_CASE("what does not fit is refused in a sentence") {
  run_well(1, [&](const Group& group) {
    Model model({10});
    Model other({10});
    DistributedDataParallel ddp{model, group};
    DistributedDataParallel another{other, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    CHECK_CONTAINS(sentence_of([&] { another.backward([](Ready ready) { ready(0); }, optimizer); }),
                   "that of another DistributedDataParallel");
    Model hooked({10});
    DistributedDataParallel with_hook{hooked, group, {}, dtrain::hooks::Cast<dtrain::bfloat16>{}};
    ShardedOptimizer beside{with_hook, optimizers::Sgd{}};
    CHECK_CONTAINS(sentence_of([&] { with_hook.backward([](Ready ready) { ready(0); }, beside); }),
                   "a gradient hook reduces the buckets");
  });
}

TEST_CASE(
    "beside an optimizer of stage 2 no step takes none, or one of stage 1; and no model has its gradients bound") {
  run_well(2, [&](const Group& group) {
    Model model({10, 3000});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer whole{ddp, optimizers::Sgd{}};
    ShardedOptimizer divided{ddp, optimizers::Sgd{}, ShardedOptions{.stage = 2}};
    const auto pass = [](Ready ready) { all_ready(ready, 2); };
    CHECK_THROWS_WITH_AS(ddp.backward(pass), doctest::Contains("has left no memory for all gradients"), dtrain::Error);
    CHECK_ERROR(ddp.backward(pass, whole), Errc::invalid_argument, "needs the memory of all gradients");
    ddp.backward(pass, divided);
    CHECK(divided.steps() == 1);
    BindingModel bound({10, 3000});
    DistributedDataParallel with_bound{bound, group};
    CHECK_ERROR((ShardedOptimizer{with_bound, optimizers::Sgd{}, ShardedOptions{.stage = 2}}), Errc::unsupported,
                "wrap a model without bind_gradient");
    with_bound.backward(pass);
  });
}

TEST_CASE("a model without memory for gradients gives views of them, to steps with an optimizer of either stage") {
  run_well(2, [&](const Group& group) {
    Model model = without_gradient_memory({10, 3000});
    std::vector<float> ones(3000, 1.0F);
    const auto pass = [&](Ready ready) {
      ready(1, dtrain::tensor_view(ones.data(), {3000}), {});
      ready(0, dtrain::tensor_view(ones.data(), {10}), {});
    };
    DistributedDataParallel ddp{model, group};
    CHECK_THROWS_WITH_AS(ddp.backward(pass), doctest::Contains("the model's gradients have no memory"), dtrain::Error);
    CHECK_ERROR(ddp.begin(), Errc::invalid_argument, "give a ShardedOptimizer to each step");
    ShardedOptimizer whole{ddp, optimizers::Sgd{.rate = 1}};
    ddp.backward(pass, whole);
    ShardedOptimizer divided{ddp, optimizers::Sgd{.rate = 1}, ShardedOptions{.stage = 2}};
    std::string error;
    const auto forgetful = [&](Ready ready) {
      error = sentence_of([&] { ready(1); });
      pass(ready);
    };
    ddp.backward(forgetful, divided);
    CHECK(error ==
          "ready(1) for parameter 1 'layer1' came without memory, and the parameter's own gradient has none; "
          "call ready(i, view) with a view of the gradient (on a GPU ready(i, view, stream))");
    CHECK(model.values[1] == std::vector<float>(3000, -2.0F));
    CHECK(model.values[0] == std::vector<float>(10, -2.0F));
  });
}

TEST_CASE("in stage 2 a parameter without ready() counts as zeros, and gradients may come from several threads") {
  run_well(2, [&](const Group& group) {
    Model model(std::vector<std::size_t>(40, 100));
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 800, .allow_unused_parameters = true}};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1}, ShardedOptions{.stage = 2}};
    for (int step = 1; step <= 20; ++step) {
      const auto pass = [&](Ready ready) {
        const auto some = [&](std::size_t first) {
          for (std::size_t i = first; i < 40; i += 3) {
            model.gradients[39 - i].assign(100, static_cast<float>(39 - i));
            ready(39 - i);
          }
        };
        std::thread beside(some, 1);
        some(0);
        beside.join();
      };
      ddp.backward(pass, optimizer);
      for (std::size_t i = 0; i < 40; ++i)
        CHECK(model.values[i][7] == ((39 - i) % 3 == 2 ? 0.0F : -static_cast<float>(step * static_cast<int>(i))));
    }
  });
}

/// Throws on one rank, in its second step.
struct Throwing {
  int rank = 0;
  void operator()(std::span<float>, std::span<const float>, const StepInfo& info) const {
    if (rank == 1 && info.step == 2) throw std::runtime_error("the learning rate is not a number");
  }
};

void check_throwing(const ShardedOptions& stage) {
  expect_ends(2, {"the learning rate is not a number"}, [&](const Group& group) {
    Model model({3000, 2000, 1000});
    fill_values(model);
    const std::vector<std::vector<float>> values = model.values;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
    ShardedOptimizer optimizer{ddp, Throwing{group.rank()}, stage};
    ddp.backward(backward(model, 0, group.rank()), optimizer);
    try {
      ddp.backward(backward(model, 1, group.rank()), optimizer);
      group.barrier();  // the other rank may have finished its step
    } catch (const std::exception& error) {
      CHECK_CONTAINS(error.what(), "the learning rate is not a number");
      CHECK(equal_bits(model.values, values));
      throw;
    }
  });
}

TEST_CASE("an exception of the rule ends the job with its text, and makes no rank take gradients for weights") {
  for (const bool frees : {false, true}) {
    check_throwing({.early_update = frees});
    check_throwing({.stage = 2, .early_update = frees});
  }
}

/// Takes its time; counts the calls that have begun and those that have ended.
struct Slow {
  std::atomic<int>* begun;
  std::atomic<int>* ended;
  void operator()(std::span<float>, std::span<const float>, const StepInfo&) const {
    ++*begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++*ended;
  }
};

TEST_CASE("when an exception leaves backward(), no update runs any more: the optimizer may be destroyed") {
  expect_ends(2, {"the loss is not a number"}, [&](const Group& group) {
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    Model model({4096, 4096, 4096});
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0, .progress = dtrain::stream::host::Progress::thread}};
    ShardedOptimizer optimizer{ddp, Slow{&begun, &ended}};
    const auto pass = [&](Ready ready) {
      ready(2);
      ready(1);
      if (group.rank() == 1) {
        while (begun == 0)
          group.check();
        throw std::runtime_error("the loss is not a number");
      }
      ready(0);
    };
    try {
      ddp.backward(pass, optimizer);
    } catch (const std::exception&) {
      CHECK(begun == ended);
      throw;
    }
  });
}

TEST_CASE("a backward() within a backward() is refused, and the outer step updates") {
  run_well(1, [&](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{.rate = 1.0F}};
    std::string error;
    const auto pass = [&](Ready ready) {
      error = sentence_of(
          [&] { ddp.backward([](Ready) {}, optimizer, {.inspect = [](StepGradients&) { return false; }}); });
      model.gradients[0].assign(10, 2.0F);
      ready(0);
    };
    ddp.backward(pass, optimizer);
    CHECK_CONTAINS(error, "came while a step was under way");
    CHECK(optimizer.steps() == 1);
    CHECK(model.values[0] == std::vector<float>(10, -2.0F));
  });
}

}  // namespace sharded_optimizer_test
