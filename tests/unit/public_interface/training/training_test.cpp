#include "unit/public_interface/prelude.hpp"

namespace {

/// Sizes on both sides of cache lines, and one without elements.
const std::vector<std::size_t> layer_sizes{1, 1000, 17, 0, 4096, 3};

struct Layers : Model {
  explicit Layers(const std::vector<std::size_t>& sizes = layer_sizes) : Model(sizes) {}
};

struct BoundLayers : BindingModel {
  explicit BoundLayers(const std::vector<std::size_t>& sizes = layer_sizes) : BindingModel(sizes) {}
};

/// Gradient i of `rank` in `step`: numbers whose sum depends on the order of summation.
std::vector<float> local_gradient(int rank, int step, std::size_t i, std::size_t count) {
  std::mt19937 generator(static_cast<std::uint32_t>(rank * 1000 + step * 100) + static_cast<std::uint32_t>(i));
  std::vector<float> numbers(count);
  for (float& number : numbers)
    number = std::ldexp(static_cast<float>(generator() % 20011) - 10005.0F, static_cast<int>(generator() % 20) - 10);
  return numbers;
}

/// Summed in rank order, then scaled.
std::vector<float> expected_gradient(int ranks, int step, std::size_t i, std::size_t count) {
  std::vector<float> sum = local_gradient(0, step, i, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> next = local_gradient(rank, step, i, count);
    for (std::size_t k = 0; k < count; ++k)
      sum[k] += next[k];
  }
  for (float& number : sum)
    number *= 1.0F / static_cast<float>(ranks);
  return sum;
}

bool same_bits(const dtrain::TensorView& view, const std::vector<float>& expected) {
  return expected.empty() || std::memcmp(view.data, expected.data(), view.bytes()) == 0;
}

template <class M>
void backward(M& model, int rank, int step, Ready ready) {
  for (std::size_t i = model.list.size(); i-- > 0;) {
    const std::vector<float> local = local_gradient(rank, step, i, layer_sizes[i]);
    const std::span<float> gradient = model.list[i].gradient.template as<float>();
    std::copy(local.begin(), local.end(), gradient.begin());
    ready(i);
  }
}

template <class M>
void expect_exact_averages(int ranks, const DdpOptions& options) {
  const std::vector<RankEnd> ends = run_groups<Policy>(ranks, [&](const Group& group) {
    M model;
    DistributedDataParallel ddp{model, group, options};
    for (int step = 0; step < 3; ++step) {
      ddp.backward([&](Ready ready) { backward(model, group.rank(), step, ready); });
      for (std::size_t i = 0; i < layer_sizes.size(); ++i)
        CHECK(same_bits(model.list[i].gradient, expected_gradient(ranks, step, i, layer_sizes[i])));
    }
    const std::size_t elements = std::accumulate(layer_sizes.begin(), layer_sizes.end(), std::size_t{0});
    CHECK(ddp.statistics().bytes_reduced == 3 * 4 * elements);
  });
  CHECK(ends == std::vector<RankEnd>(static_cast<std::size_t>(ranks)));
}

}  // namespace

TEST_CASE("gradients are averaged in rank order, the same bits for every bucket size, progress, bound or not") {
  support::Combinations(std::array{1, 2, 3, 4}, std::array{std::size_t{0}, std::size_t{4096}, std::size_t{25} << 20},
                        std::array{Progress::caller, Progress::thread})
      .for_each([&](int ranks, std::size_t bucket_bytes, Progress progress) {
        CAPTURE(ranks);
        CAPTURE(bucket_bytes);
        const DdpOptions options{.bucket_bytes = bucket_bytes, .progress = progress};
        expect_exact_averages<Layers>(ranks, options);
        expect_exact_averages<BoundLayers>(ranks, options);
      });
}

TEST_CASE("every rank begins with rank 0's values") {
  run_groups<Policy>(3, [&](const Group& group) {
    Layers model;
    for (std::vector<float>& value : model.values)
      std::fill(value.begin(), value.end(), static_cast<float>(7 + group.rank()));
    DistributedDataParallel ddp{model, group};
    for (const std::vector<float>& value : model.values)
      CHECK(std::all_of(value.begin(), value.end(), [](float x) { return x == 7.0F; }));
  });
}

TEST_CASE("several threads of each rank announce in orders of their own") {
  run_groups<Policy>(2, [&](const Group& group) {
    BoundLayers model(std::vector<std::size_t>(32, 50));
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 1024, .first_bucket_bytes = 256}};
    for (int step = 0; step < 5; ++step) {
      ddp.backward([&](Ready ready) {
        support::on_threads(4, [&](std::size_t t) {
          for (std::size_t k = 0; k < 8; ++k) {
            const std::size_t i = (k * 5 + static_cast<std::size_t>(group.rank()) * 3) % 8 * 4 + t;
            model.write(i, static_cast<float>(i) + static_cast<float>(group.rank()));
            ready(i);
          }
        });
      });
      for (std::size_t i = 0; i < 32; ++i)
        CHECK(model.list[i].gradient.as<float>()[49] == static_cast<float>(i) + 0.5F);
    }
  });
}

TEST_CASE("two wrappers of one group do not disturb each other, in steps that overlap") {
  run_groups<Policy>(2, [&](const Group& group) {
    Layers one({8});
    Layers two({8});
    DistributedDataParallel first{one, group};
    DistributedDataParallel second{two, group, {.reduce_op = dtrain::ReduceOp::sum}};
    for (int step = 0; step < 3; ++step) {
      std::fill(one.gradients[0].begin(), one.gradients[0].end(), static_cast<float>(group.rank()));
      std::fill(two.gradients[0].begin(), two.gradients[0].end(), static_cast<float>(group.rank()));
      auto a = first.begin();
      auto b = second.begin();
      a.ready(0);
      b.ready(0);
      b.finish();
      a.finish();
      CHECK((one.gradients[0][7] == 0.5F && two.gradients[0][7] == 1.0F));
    }
  });
}

TEST_CASE("an exception of one rank's backward pass is every rank's end") {
  const std::vector<RankEnd> ends = run_groups<Policy>(3, [&](const Group& group) {
    Layers model;
    DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 1000; ++step) {
      ddp.backward([&](Ready ready) {
        if (group.rank() == 1 && step == 3) throw std::runtime_error("loss is nan");
        backward(model, group.rank(), step, ready);
      });
    }
  });
  CHECK(ends[1] == RankEnd{"loss is nan", false});
  for (const std::size_t rank : {0U, 2U}) {
    CHECK(ends[rank].job_failed);
    CHECK_CONTAINS(ends[rank].text, "rank 1", "loss is nan");
  }
}

TEST_CASE("an exception that leaves a step in the open is the cause, not the abandoned step") {
  for (int repeat = 0; repeat < 10; ++repeat) {
    const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
      Layers model;
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
      for (int step = 0; step < 1000; ++step) {
        auto open = ddp.begin();
        for (std::size_t i = 0; i < layer_sizes.size(); ++i) {
          if (group.rank() == 0 && step == 2 && i == 3) throw std::runtime_error("the disk is full");
          open.ready(i);
        }
        open.finish();
      }
    });
    CHECK_CONTAINS(ends[1].text, "the disk is full");
  }
}

TEST_CASE("an exception between two steps is every rank's end") {
  for (int repeat = 0; repeat < 10; ++repeat) {
    const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
      Layers model;
      DistributedDataParallel ddp{model, group};
      for (int step = 0; step < 1000; ++step) {
        ddp.backward([&](Ready ready) { backward(model, group.rank(), step, ready); });
        if (group.rank() == 0 && step == 2) throw std::runtime_error("no space for a checkpoint");
      }
    });
    CHECK_CONTAINS(ends[1].text, "no space for a checkpoint");
  }
}

TEST_CASE("an exception of the model while it is wrapped is every rank's end") {
  struct RefusingModel : BoundLayers {
    bool refuses = false;
    void bind_gradient(std::size_t i, const dtrain::TensorView& view) {
      if (refuses) throw std::runtime_error("this gradient stays where it is");
      BoundLayers::bind_gradient(i, view);
    }
  };
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    RefusingModel model;
    model.refuses = group.rank() == 1;
    DistributedDataParallel ddp{model, group};
    ddp.backward([&](Ready ready) { backward(model, group.rank(), 0, ready); });
  });
  CHECK_CONTAINS(ends[0].text, "this gradient stays where it is");
}

TEST_CASE("a step that is dropped without an exception is every rank's end") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    Layers model;
    DistributedDataParallel ddp{model, group};
    for (int step = 0; step < 1000; ++step) {
      auto open = ddp.begin();
      if (group.rank() == 0 && step == 2) continue;
      for (std::size_t i = 0; i < layer_sizes.size(); ++i)
        open.ready(i);
      open.finish();
    }
  });
  CHECK_CONTAINS(ends[1].text, "a step was abandoned without finish()");
}

TEST_CASE("a rank that takes more steps than the others is told at which bucket of which step they had left") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    Layers model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 4096}};
    for (int step = 0; step < 3 - group.rank(); ++step)
      ddp.backward([&](Ready ready) { backward(model, group.rank(), step, ready); });
  });
  CHECK(ends[1].text.empty());
  CAPTURE(ends[0].text);
  // layer5 and layer4, of 3 and 4096 elements, are not in one bucket of 4096 bytes; 3 elements are padded to 16.
  CHECK_CONTAINS(ends[0].text, "all_reduce (average) of 3 f32 (bucket 0 of 4 in step 3), operation ",
                 "rank 1 has left the channel without calling it; every rank takes as many steps");
}

TEST_CASE("a parameter without a gradient on one rank is named on every rank, in the step in which it happens") {
  const std::vector<RankEnd> ends = run_groups<Policy>(3, [&](const Group& group) {
    Layers model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0}};
    for (int step = 1; step < 1000; ++step) {
      ddp.backward([&](Ready ready) {
        for (std::size_t i = 0; i < layer_sizes.size(); ++i) {
          if (group.rank() != 2 || step != 4 || i != 1) ready(i);
        }
      });
    }
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK_CONTAINS(ends[rank].text, "in step 4 these parameters got no gradient: parameter 1 'layer1';");
    CHECK(ends[rank].job_failed == (rank != 2));
  }
}

TEST_CASE("another model on one rank is refused on every rank, with the first difference") {
  const std::vector<RankEnd> ends = run_groups<Policy>(4, [&](const Group& group) {
    std::vector<std::size_t> sizes = layer_sizes;
    if (group.rank() == 3) sizes[2] = sizes[4] = 16;
    Layers model(sizes);
    DistributedDataParallel ddp{model, group};
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(ends[rank].text ==
          "ranks disagree: rank 3's parameter 2 'layer2' is f32 [16], rank 0's is f32 [17]; build the same model on "
          "all ranks");
    CHECK(ends[rank].job_failed == (rank != 3));
  }
}

TEST_CASE("other options on one rank are refused on every rank") {
  const std::vector<RankEnd> ends = run_groups<Policy>(2, [&](const Group& group) {
    Layers model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = group.rank() == 0 ? 4096U : 8192U}};
  });
  for (const RankEnd& end : ends)
    CHECK(end.text ==
          "ranks disagree: rank 1's DdpOptions::bucket_bytes is 8192, rank 0's is 4096; set it alike on all ranks");
}
