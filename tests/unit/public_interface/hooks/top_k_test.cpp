// hooks::TopK: which elements travel, what the ranks get, and what is kept for the next step.

#include "unit/public_interface/prelude.hpp"

namespace top_k_test {

/// NaN, infinity, then the others by absolute value; equal ones by index.
std::vector<std::uint32_t> sorted_out(const std::vector<float>& values, std::size_t k) {
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto size = [&](std::uint32_t i) {
    return std::isnan(values[i])   ? std::numeric_limits<double>::infinity()
           : std::isinf(values[i]) ? 1e300
                                   : std::abs(static_cast<double>(values[i]));
  };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return size(a) > size(b); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST_CASE("the largest elements are those that sorting finds, the first of equal ones") {
  std::mt19937 random(1);
  dtrain::ddp::LargestElements largest;
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{70'000}}) {
    for (const bool has_ties : {false, true}) {
      std::vector<float> values(count);
      for (float& value : values) {
        value = std::normal_distribution<float>(0, 1e-3F)(random);
        if (has_ties) value = std::round(value * 1000) / 1000;
      }
      if (count > 10) {
        values[3] = std::numeric_limits<float>::quiet_NaN();
        values[count - 1] = -std::numeric_limits<float>::infinity();
        values[count / 2] = std::numeric_limits<float>::denorm_min();
      }
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}, count / 3, count - 1, count}) {
        CAPTURE(count);
        CAPTURE(k);
        std::vector<std::uint32_t> found(k);
        largest.select(values, k, found.data());
        CHECK(found == sorted_out(values, k));
      }
    }
  }
}

/// Element k of rank's gradient i in a step.
float element(int step, int rank, std::size_t i, std::size_t k) {
  const auto seed = static_cast<std::uint32_t>(((step * 16 + rank) * 64 + static_cast<int>(i)) * 8192 + 1);
  const std::uint32_t mixed = (seed + static_cast<std::uint32_t>(k)) * 2654435761U;
  return static_cast<float>(static_cast<double>(mixed) / 2147483648.0 - 1);
}

const std::vector<std::size_t> sizes{5, 1200, 0, 6, 3000, 17};

template <class Ddp, class AnyModel>
void run_step(Ddp& ddp, AnyModel& model, int step, int rank) {
  run_step(ddp, model, [&](std::size_t i, std::size_t k) { return element(step, rank, i, k); });
}

/// What the ranks send of one gradient, step by step, and the average of it.
class Reference {
 public:
  Reference(int ranks, std::size_t i, std::size_t sent)
      : i_(i), sent_(sent), errors_(static_cast<std::size_t>(ranks), std::vector<float>(sizes[i])) {}

  std::vector<float> step(int step) {
    std::vector<float> average(sizes[i_]);
    const float factor = 1.0F / static_cast<float>(errors_.size());
    for (std::size_t rank = 0; rank < errors_.size(); ++rank) {
      std::vector<float>& error = errors_[rank];
      for (std::size_t k = 0; k < error.size(); ++k)
        error[k] += element(step, static_cast<int>(rank), i_, k);
      for (const std::uint32_t k : sorted_out(error, sent_)) {
        average[k] += factor * error[k];
        error[k] = 0;
      }
    }
    return average;
  }

 private:
  std::size_t i_;
  std::size_t sent_;
  std::vector<std::vector<float>> errors_;
};

TEST_CASE("each rank gets the average of what the ranks send, and the rest goes into later steps") {
  constexpr int ranks = 3;
  for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{9000}, std::size_t{1} << 20}) {
    run_well(ranks, [&](const Group& group) {
      BindingModel model(sizes);
      dtrain::hooks::TopK hook{{.fraction = 0.02, .start_after = 1}};
      DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}, std::ref(hook)};
      std::vector<Reference> references{{ranks, 1, 24}, {ranks, 4, 60}};
      for (int step = 0; step < 8; ++step) {
        run_step(ddp, model, step, group.rank());
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          const auto gradient = model.list[i].gradient.as<float>();
          const bool is_compressed = step > 0 && (i == 1 || i == 4);
          const std::vector<float> sparse =
              is_compressed ? references[i == 4 ? 1 : 0].step(step) : std::vector<float>();
          if (is_compressed) CHECK(std::ranges::equal(gradient, sparse));
          for (std::size_t k = 0; !is_compressed && k < gradient.size(); ++k) {
            float sum = 0;
            for (int rank = 0; rank < ranks; ++rank)
              sum += element(step, rank, i, k);
            CHECK(std::abs(gradient[k] - sum / ranks) < 1e-6F);
          }
        }
      }
    });
    CAPTURE(bucket_bytes);
  }
}

TEST_CASE("a hook that would save nothing reduces everything as it is") {
  run_well(3, [&](const Group& group) {
    BindingModel model(sizes);
    BindingModel other(sizes);
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::TopK{{.fraction = 0.2}}};  // 2 x 3 x 0.2 is above 1
    DistributedDataParallel plain{other, group};
    run_step(ddp, model, 1, group.rank());
    run_step(plain, other, 1, group.rank());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto a = model.list[i].gradient.as<float>();
      const auto b = other.list[i].gradient.as<float>();
      CHECK((a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0));
    }
  });
}

TEST_CASE("an element that is not finite reaches every rank, and steady steps allocate nothing") {
  run_well(2, [&](const Group& group) {
    Model model({1000});
    dtrain::hooks::TopK hook;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    ddp.backward([&](Ready ready) {
      model.gradients[0].assign(1000, 1);
      if (group.rank() == 1) model.gradients[0][700] = std::numeric_limits<float>::quiet_NaN();
      ready(0);
    });
    CHECK(std::isnan(model.gradients[0][700]));
  });
  run_well(1, [](const Group& group) {
    const dtrain::DdpOptions options{.check_addresses = false, .progress = dtrain::stream::host::Progress::caller};
    BindingModel model(sizes);
    dtrain::hooks::TopK hook{{.fraction = 0.02}};
    DistributedDataParallel ddp{model, group, options, std::ref(hook)};
    for (int step = 0; step < 3; ++step)
      run_step(ddp, model, step, 0);
    const std::size_t before = support::allocations_of_this_thread;
    for (int step = 0; step < 20; ++step)
      run_step(ddp, model, step, 0);
    CHECK(support::allocations_of_this_thread == before);
    ::operator delete(::operator new(1));
    CHECK(support::allocations_of_this_thread > before);  // the count counts
  });
}

TEST_CASE("with start_after, a gradient without elements delays no compression, whatever its bucket") {
  run_well(2, [&](const Group& group) {
    Model model({90, 400, 0});
    dtrain::hooks::TopK hook{{.fraction = 0.1, .start_after = 2}};
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 1000, .first_bucket_bytes = 1000}, std::ref(hook)};
    for (int step = 0; step < 5; ++step) {
      ddp.backward([&](Ready ready) {
        model.gradients[0].assign(90, 1);
        for (const std::size_t i : {1U, 2U, 0U})  // the second plan puts the last one into the first one's bucket
          ready(i);
      });
      const auto sent = std::count_if(model.gradients[0].begin(), model.gradients[0].end(),
                                      [](float element) { return element != 0; });
      CHECK((step < 2 ? sent == 90 : sent == 9));
    }
  });
}

TEST_CASE("a training that goes on from a checkpoint begins to compress in the same step, with an empty gradient too") {
  const support::TemporaryDirectory folder;
  run_well(2, [&](const Group& group) {
    const auto steps = [&](auto& ddp, Model& model, int first, int last) {
      std::vector<std::vector<float>> gradients;
      for (int step = first; step < last; ++step) {
        ddp.backward([&](Ready ready) {
          for (const std::size_t i : {1U, 2U, 0U}) {
            for (std::size_t k = 0; k < model.gradients[i].size(); ++k)
              model.gradients[i][k] = element(step, group.rank(), i, k);
            ready(i);
          }
        });
        gradients.insert(gradients.end(), model.gradients.begin(), model.gradients.end());
      }
      return gradients;
    };
    const dtrain::DdpOptions options{.bucket_bytes = 1000, .first_bucket_bytes = 1000};
    const dtrain::ddp::TopKOptions sparse{.fraction = 0.1, .start_after = 4};
    Model model({90, 400, 0});
    dtrain::hooks::TopK hook{sparse};
    DistributedDataParallel ddp{model, group, options, std::ref(hook)};
    steps(ddp, model, 0, 2);
    const auto saved = hook.state(group);
    dtrain::save_checkpoint(group, folder.path + "/state", saved);
    const auto expected = steps(ddp, model, 2, 8);
    Model next({90, 400, 0});
    dtrain::hooks::TopK next_hook{sparse};
    DistributedDataParallel next_ddp{next, group, options, std::ref(next_hook)};
    const auto loaded = next_hook.state(group);
    CHECK(dtrain::load_checkpoint(group, folder.path + "/state", loaded));
    CHECK(steps(next_ddp, next, 2, 8) == expected);
  });
}

TEST_CASE("a TopK that cannot work is refused") {
  CHECK_THROWS_WITH_AS(dtrain::hooks::TopK({.fraction = 0}), "hooks::TopK has fraction 0; it is above 0 and at most 1",
                       dtrain::Error);
  CHECK_THROWS_AS(dtrain::hooks::TopK({.fraction = std::numeric_limits<double>::quiet_NaN()}), dtrain::Error);
  run_well(1, [](const Group& group) {
    Model model(sizes);
    Model other(sizes);
    dtrain::hooks::TopK hook;
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    CHECK_THROWS_AS((DistributedDataParallel{other, group, {}, std::ref(hook)}), dtrain::Error);
  });
}

}  // namespace top_k_test
