// Gradient hooks: what they are given, casts to 16 bits, PowerSGD, and ranks with different hooks.

#include "dtrain/ddp/hooks/low_rank.hpp"
#include "support/expect_error.hpp"
#include "unit/public_interface/prelude.hpp"

namespace gradient_hooks_test {

using Shapes = std::vector<dtrain::Shape>;

/// Two matrices worth compressing, one that is not, and tensors of other shapes between them.
const Shapes shapes{{5}, {40, 30}, {0, 7}, {3, 2}, {}, {32, 4, 9}, {17}};

/// Element k of rank's gradient i in a step.
float element(int step, int rank, std::size_t i, std::size_t k) {
  const std::uint64_t number = (static_cast<std::uint64_t>(step * 16 + rank) * 64 + i) * 4096 + k;
  std::uint64_t seed = (number ^ (number >> 30U)) * 0xBF58476D1CE4E5B9U;  // SplitMix64's last steps
  seed = (seed ^ (seed >> 27U)) * 0x94D049BB133111EBU;
  std::minstd_rand random(static_cast<unsigned>((seed ^ (seed >> 31U)) >> 33U));
  return std::normal_distribution<float>()(random);
}

/// Results of the ranks, to compare their bits.
class Results {
 public:
  explicit Results(int ranks) : all_(static_cast<std::size_t>(ranks)) {}
  template <class AnyModel>
  void add(int rank, const AnyModel& model) {
    const std::vector<float> gradients = gradients_of(model);
    std::vector<float>& own = all_[static_cast<std::size_t>(rank)];
    own.insert(own.end(), gradients.begin(), gradients.end());
  }
  bool are_equal() const {
    return std::all_of(all_.begin(), all_.end(), [&](const std::vector<float>& own) {
      return own.size() == all_[0].size() && !own.empty() &&
             std::memcmp(own.data(), all_[0].data(), own.size() * sizeof(float)) == 0;
    });
  }

 private:
  std::vector<std::vector<float>> all_;
};

/// Reduces as without a hook, and notes what it got.
struct Recorder {
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<std::vector<std::size_t>> planned;  ///< those with elements
  std::size_t wrong = 0;
  std::size_t prepared = 0;

  template <class C>
  void plan(C& channel, const dtrain::ddp::BucketPlan& plan, dtrain::Deadline deadline) {
    planned.clear();
    for (const dtrain::ddp::PlannedBucket& bucket : plan.buckets) {
      if (bucket.bytes != 0) planned.push_back(bucket.parameters);
    }
    wrong += channel.allocate_blocking(8, deadline).bytes() >= 8 ? 0 : 1;  // all ranks do
  }

  void prepare(std::span<const dtrain::Parameter> parameters) { prepared += parameters.size(); }

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    std::vector<std::size_t>& parameters = buckets.emplace_back();
    for (const dtrain::BucketGradient& gradient : bucket.gradients) {
      parameters.push_back(gradient.parameter);
      const std::byte* const end = bucket.values.data + bucket.values.count * sizeof(float);
      const bool is_inside =
          gradient.view.data >= bucket.values.data && gradient.view.data + gradient.view.bytes() <= end;
      wrong += gradient.view.shape == shapes[gradient.parameter] && (is_inside || gradient.view.bytes() == 0) ? 0 : 1;
    }
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
};

TEST_CASE("rows of any size that f32 has become orthonormal") {
  for (const float size : {1e-25F, 1.0F, 1e25F, 1e35F}) {
    CAPTURE(size);
    std::vector<float> values{size, size, 0, size, 0, size};
    CHECK(dtrain::ddp::orthonormalize_rows({values.data(), 2, 3}));
    const auto product = [&](std::size_t a, std::size_t b) {
      return values[a] * values[b] + values[a + 1] * values[b + 1] + values[a + 2] * values[b + 2];
    };
    CHECK(product(0, 0) == doctest::Approx(1));
    CHECK(product(3, 3) == doctest::Approx(1));
    CHECK(std::abs(product(0, 3)) < 1e-6F);
  }
}

TEST_CASE("a hook gets every gradient once a step, with its shape and place, and each plan before its first step") {
  for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{1000}, std::size_t{1} << 20}) {
    CAPTURE(bucket_bytes);
    run_well(3, [&](const Group& group) {
      Shaped<BindingModel> model(shapes);
      Recorder recorder;
      DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}, std::ref(recorder)};
      for (int step = 0; step < 3; ++step) {
        recorder.buckets.clear();
        const auto planned = recorder.planned;
        // The order of the second plan is not that of the first: it is in the order of ready().
        ddp.backward([&](Ready ready) {
          for (std::size_t i = 0; i < model.list.size(); ++i) {
            model.write(i, static_cast<float>(group.rank() + step));
            ready(i);
          }
        });
        CHECK(recorder.buckets == planned);
        std::vector<std::size_t> seen;
        for (const auto& bucket : recorder.buckets)
          seen.insert(seen.end(), bucket.begin(), bucket.end());
        const std::size_t count = seen.size();
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        // A bucket without elements is not reduced, and the hook does not see it.
        CHECK(seen.size() == count);
        CHECK(count + (bucket_bytes == 0 ? 1 : 0) == shapes.size());
        for (std::size_t i = 0; i < model.list.size(); ++i)
          CHECK(model.holds(i, static_cast<float>(step + 1)));
      }
      CHECK(recorder.wrong == 0);
      CHECK(recorder.prepared == shapes.size());
    });
  }
}

template <class Half>
void check_cast(int ranks, dtrain::ReduceOp op) {
  Results results(ranks);
  run_well(ranks, [&](const Group& group) {
    Shaped<Model> model(shapes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = op}, dtrain::hooks::Cast<Half>{}};
    for (int step = 0; step < 3; ++step) {
      run_step(ddp, model, [&](std::size_t i, std::size_t k) { return element(step, group.rank(), i, k); });
      results.add(group.rank(), model);
      const float factor = op == dtrain::ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        for (std::size_t k = 0; k < model.gradients[i].size(); ++k) {
          float sum = 0;
          float magnitude = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const float rounded = static_cast<float>(Half(element(step, rank, i, k) * factor));
            sum += rounded;
            magnitude += std::abs(rounded);
          }
          // Each rank's rounding is exact here; the sum is rounded to 16 bits again.
          const float allowed =
              magnitude * static_cast<float>(ranks) * (std::is_same_v<Half, dtrain::bfloat16> ? 0.004F : 0.0005F);
          CHECK(std::abs(model.gradients[i][k] - sum) <= allowed + 1e-7F);
          CHECK(model.gradients[i][k] == static_cast<float>(Half(model.gradients[i][k])));
        }
      }
    }
  });
  CHECK(results.are_equal());
}

TEST_CASE("hooks::Cast reduces 16 bits of every element, to the same bits on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    for (const dtrain::ReduceOp op : {dtrain::ReduceOp::average, dtrain::ReduceOp::sum}) {
      check_cast<dtrain::bfloat16>(ranks, op);
      check_cast<dtrain::float16>(ranks, op);
    }
  }
}

TEST_CASE("an average of f16 that is in range does not overflow on the way") {
  run_well(3, [&](const Group& group) {
    Shaped<BindingModel> model(shapes);
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Cast<dtrain::float16>{}};
    run_step(ddp, model, [](std::size_t, std::size_t) { return 60000.0F; });
    CHECK(std::ranges::all_of(gradients_of(model), [](float value) { return std::abs(value - 60000.0F) <= 64; }));
  });
}

/// All gradients of 12 steps with error feedback in all parameters but layer 1.
std::vector<float> train_with_feedback(std::size_t bucket_bytes, bool reorders) {
  std::vector<float> all;
  run_well(3, [&](const Group& group) {
    Shaped<BindingModel> model(shapes);
    dtrain::hooks::Cast<dtrain::bfloat16> hook{
        {.error_feedback = [](const dtrain::Parameter& parameter) { return parameter.name != "layer1"; }}};
    DistributedDataParallel ddp{
        model, group, {.bucket_bytes = bucket_bytes, .reorder_gradients = reorders}, std::ref(hook)};
    const std::vector<std::size_t> first_plan = ddp.plan().bucket_of;
    for (int step = 0; step < 12; ++step) {
      ddp.backward([&](Ready ready) {
        for (std::size_t i = 0; i < model.list.size(); ++i) {  // not the order of the first plan
          const auto gradient = model.list[i].gradient.as<float>();
          for (std::size_t k = 0; k < gradient.size(); ++k)
            gradient[k] = element(step, group.rank(), i, k);
          ready(i);
        }
      });
      if (group.rank() == 0) {
        const std::vector<float> reduced = gradients_of(model);
        all.insert(all.end(), reduced.begin(), reduced.end());
      }
    }
    CHECK((ddp.plan().bucket_of != first_plan) == (reorders && bucket_bytes < 10'000));
  });
  return all;
}

TEST_CASE("the errors of hooks::Cast are those of parameters: other buckets, planned anew, change no bit") {
  const std::vector<float> whole = train_with_feedback(std::size_t{1} << 20, false);
  CHECK(whole.size() > 12 * 1000);
  CHECK(std::memcmp(whole.data(), train_with_feedback(3000, true).data(), whole.size() * sizeof(float)) == 0);
  CHECK(std::memcmp(whole.data(), train_with_feedback(0, true).data(), whole.size() * sizeof(float)) == 0);
}

TEST_CASE("a hooks::Cast with error feedback is for one model, and says so") {
  run_well(1, [](const Group& group) {
    Shaped<Model> model(shapes);
    Shaped<Model> other(shapes);
    dtrain::hooks::Cast<dtrain::bfloat16> hook{{.error_feedback = dtrain::hooks::every_parameter}};
    CHECK(hook.description() == "hooks::Cast to bf16 with error feedback");
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK_ERROR((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Errc::invalid_argument,
                "a hooks::Cast with error feedback is given to a second model; each model needs its own",
                "in an elastic job: make the hook in the function of train()");
  });
}

TEST_CASE("the summary says what a hook sends and saves, and nothing about it without one") {
  run_well(2, [](const Group& group) {
    Shaped<BindingModel> model(shapes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}, dtrain::hooks::Cast<dtrain::bfloat16>{}};
    Shaped<BindingModel> other(shapes);
    Recorder recorder;
    DistributedDataParallel recorded{other, group, {.bucket_bytes = 3000}, std::ref(recorder)};
    Shaped<BindingModel> third(shapes);
    DistributedDataParallel plain{third, group, {.bucket_bytes = 3000}};
    for (int step = 0; step < 5; ++step) {
      run_step(ddp, model, [](std::size_t, std::size_t k) { return static_cast<float>(k); });
      run_step(recorded, other, [](std::size_t, std::size_t k) { return static_cast<float>(k); });
      run_step(plain, third, [](std::size_t, std::size_t k) { return static_cast<float>(k); });
    }
    std::size_t bytes = 0;  // with padding
    for (const dtrain::ddp::PlannedBucket& bucket : ddp.plan().buckets)
      bytes += bucket.bytes;
    const dtrain::CompressedTraffic traffic = ddp.statistics().hook;
    CHECK(traffic.bytes == 5 * bytes);
    CHECK(traffic.bytes_sent == 5 * bytes / 2);
    CHECK(traffic.compressing.count() > 0);
    CHECK(traffic.compressing <= ddp.statistics().times.communication);
    CHECK_CONTAINS(ddp.summary(), ", sent as ");
    CHECK(recorded.statistics().hook == dtrain::CompressedTraffic{5 * bytes, 5 * bytes, {}});
    CHECK(plain.statistics().hook == dtrain::CompressedTraffic{});
    CHECK(plain.statistics().wire == dtrain::CompressedTraffic{});
    CHECK(plain.summary().find("sent as") == std::string::npos);
    CHECK(plain.summary().find("on the wire") == std::string::npos);
  });
}

/// Norm of `a` - `b` over the norm of `b`.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0;
  double all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    all += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(square / all);
}

/// The average of all ranks' gradients, times `factor`.
std::vector<float> average(int step, int ranks, float factor = 1) {
  std::vector<float> all;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(shapes[i].element_count()); ++k) {
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank)
        sum += static_cast<double>(element(step, rank, i, k));
      all.push_back(factor * static_cast<float>(sum / ranks));
    }
  }
  return all;
}

TEST_CASE("PowerSGD passes matrices of at most its rank on as they are, and all other gradients always") {
  Results results(3);
  run_well(3, [&](const Group& group) {
    Shaped<BindingModel> model(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = 4, .min_compression = 1.5}};
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 6000}, std::ref(hook)};
    CHECK((hook.compresses(1) && hook.compresses(5) && !hook.compresses(3) && !hook.compresses(6)));
    for (int step = 0; step < 6; ++step) {
      // Of rank 1 on each rank, so of rank 3 in the average.
      const auto value = [&](int rank, std::size_t i, std::size_t k) {
        const std::span<const std::int64_t> extents = shapes[i].extents();
        const std::size_t columns =
            extents.size() < 2 ? 1 : shapes[i].element_count() / static_cast<std::size_t>(extents[0]);
        return element(step, rank, i, k / columns) * element(step, rank, i + 32, k % columns);
      };
      run_step(ddp, model, [&](std::size_t i, std::size_t k) { return value(group.rank(), i, k); });
      results.add(group.rank(), model);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto gradient = model.list[i].gradient.as<float>();
        double worst = 0;
        for (std::size_t k = 0; k < gradient.size(); ++k) {
          const double expected = (static_cast<double>(value(0, i, k)) + static_cast<double>(value(1, i, k)) +
                                   static_cast<double>(value(2, i, k))) /
                                  3;
          worst = std::max(worst, std::abs(static_cast<double>(gradient[k]) - expected));
        }
        CHECK(worst < (hook.compresses(i) ? 2e-4 : 1e-6));
      }
    }
  });
  CHECK(results.are_equal());
}

TEST_CASE("what PowerSGD leaves out of a step comes in later ones") {
  run_well(2, [&](const Group& group) {
    Shaped<Model> model(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = 2}};
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 6000}, std::ref(hook)};
    const std::vector<float> expected = average(0, 2);
    std::vector<float> sum(expected.size());
    double first = 0;
    const int steps = 200;
    for (int step = 0; step < steps; ++step) {
      run_step(ddp, model, [&](std::size_t i, std::size_t k) { return element(0, group.rank(), i, k); });
      const std::vector<float> reduced = gradients_of(model);
      if (step == 0) first = difference(reduced, expected);
      std::transform(sum.begin(), sum.end(), reduced.begin(), sum.begin(), std::plus<>());
    }
    for (float& one : sum)
      one /= static_cast<float>(steps);
    CHECK(first > 0.5);  // random matrices are far from rank 2
    CHECK(difference(sum, expected) < 0.1);
  });
}

TEST_CASE("PowerSGD begins when it is told to, sums where a sum is asked for, and survives zeros and infinities") {
  Results results(2);
  run_well(2, [&](const Group& group) {
    Shaped<BindingModel> model(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = 40, .start_after = 2, .min_compression = 1}};  // exact where it compresses
    DistributedDataParallel ddp{model, group, {.reduce_op = dtrain::ReduceOp::sum}, std::ref(hook)};
    for (int step = 0; step < 9; ++step) {
      const float factor = step == 3 ? 0.0F : 1.0F;
      run_step(ddp, model, [&](std::size_t i, std::size_t k) {
        const bool is_infinite = step == 5 && group.rank() == 1 && i == 1 && k == 7;
        return is_infinite ? std::numeric_limits<float>::infinity() : factor * element(step, group.rank(), i, k);
      });
      results.add(group.rank(), model);
      const std::vector<float> reduced = gradients_of(model);
      if (step == 5) {
        CHECK_FALSE(std::all_of(reduced.begin(), reduced.end(), [](float one) { return std::isfinite(one); }));
      } else if (step < 2) {
        CHECK(difference(reduced, average(step, 2, 2)) < 1e-6);
      } else if (step == 3) {
        CHECK(std::all_of(reduced.begin(), reduced.end(), [](float one) { return std::isfinite(one); }));
      } else {
        CHECK(difference(reduced, average(step, 2, 2)) < 0.9);
      }
    }
  });
  CHECK(results.are_equal());
}

TEST_CASE("the norm of a step is that of what its hook left") {
  run_well(2, [&](const Group& group) {
    Shaped<BindingModel> model(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = 2}};
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}, std::ref(hook)};
    for (int step = 0; step < 3; ++step) {
      dtrain::Step one = ddp.begin({.measure_norm = true});
      write_gradients(model, one.ready(),
                      [&](std::size_t i, std::size_t k) { return element(step, group.rank(), i, k); });
      one.finish();
      double square = 0;
      for (const float value : gradients_of(model))
        square += std::pow(static_cast<double>(value), 2);
      CHECK(std::abs(ddp.gradient_norm().norm / std::sqrt(square) - 1) < 1e-12);
    }
  });
}

TEST_CASE("ranks with different hooks, or with and without one, fail with a sentence that names both") {
  expect_ends(2, {"hooks::PowerSgd with rank 1,", "hooks::PowerSgd with rank 2,"}, [](const Group& group) {
    Shaped<Model> model(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = group.rank() + 1}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  });
  expect_ends(2, {"by an all-reduce", "by hooks::Cast to bf16"}, [](const Group& group) {
    Shaped<Model> model(shapes);
    if (group.rank() == 0) {
      DistributedDataParallel ddp{model, group};
    } else {
      DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Cast<dtrain::bfloat16>{}};
    }
  });
}

TEST_CASE("steady steps with a hook allocate nothing") {
  run_well(1, [&](const Group& group) {
    const dtrain::DdpOptions options{
        .bucket_bytes = 3000, .check_addresses = false, .progress = dtrain::stream::host::Progress::caller};
    Shaped<BindingModel> model(shapes);
    Shaped<BindingModel> other(shapes);
    dtrain::hooks::PowerSgd hook{{.rank = 2}};
    DistributedDataParallel ddp{model, group, options, std::ref(hook)};
    DistributedDataParallel cast{
        other, group, options,
        dtrain::hooks::Cast<dtrain::float16>{{.error_feedback = dtrain::hooks::every_parameter}}};
    const auto both = [&] {
      run_step(ddp, model, [](std::size_t, std::size_t k) { return static_cast<float>(k); });
      run_step(cast, other, [](std::size_t, std::size_t k) { return static_cast<float>(k); });
    };
    for (int step = 0; step < 3; ++step)
      both();
    const std::size_t before = support::allocations_of_this_thread;
    for (int step = 0; step < 20; ++step)
      both();
    const std::size_t after = support::allocations_of_this_thread;
    CHECK(after == before);
    ::operator delete(::operator new(1));
    CHECK(support::allocations_of_this_thread > after);  // the count counts
  });
}

TEST_CASE("a PowerSGD that cannot work is refused") {
  CHECK_THROWS_WITH_AS(dtrain::hooks::PowerSgd({.rank = 0}),
                       "hooks::PowerSgd has rank 0 and min_compression 2; both are at least 1", dtrain::Error);
  run_well(1, [](const Group& group) {
    Shaped<Model> model(shapes);
    Shaped<Model> other(shapes);
    dtrain::hooks::PowerSgd hook;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK_THROWS_AS((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Error);
  });
}

}  // namespace gradient_hooks_test
