// hooks::Adasum against a reference that one rank computes of all gradients.

#include "support/expect_error.hpp"
#include "unit/public_interface/prelude.hpp"

namespace adasum_test {

float element(int step, int rank, std::size_t i, std::size_t k) {
  return std::sin(static_cast<float>(step * 131 + rank * 17) + static_cast<float>(i * 1009 + k) * 0.7F) + 0.3F;
}

using Vector = std::vector<double>;

/// The definition, for the vectors of one parameter.
Vector adasum(const std::vector<Vector>& vectors) {
  if (vectors.size() == 1) return vectors[0];
  const auto middle = vectors.begin() + static_cast<std::ptrdiff_t>(vectors.size() / 2);
  const Vector a = adasum({vectors.begin(), middle});
  const Vector b = adasum({middle, vectors.end()});
  const auto product = [](const Vector& x, const Vector& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const auto factor = [&](const Vector& own) {
    return product(own, own) == 0 ? 1.0 : 1 - product(a, b) / (2 * product(own, own));
  };
  Vector sum(a.size());
  for (std::size_t k = 0; k < a.size(); ++k)
    sum[k] = factor(a) * a[k] + factor(b) * b[k];
  return sum;
}

void check_against_reference(int ranks, std::size_t bucket_bytes, const std::vector<std::size_t>& sizes) {
  CAPTURE(ranks);
  CAPTURE(bucket_bytes);
  std::vector<std::vector<float>> ends(static_cast<std::size_t>(ranks));
  run_well(ranks, [&](const Group& group) {
    BindingModel model(sizes);
    dtrain::hooks::Adasum hook;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}, hook};
    for (int step = 0; step < 3; ++step) {
      run_step(ddp, model, [&](std::size_t i, std::size_t k) { return element(step, group.rank(), i, k); });
      std::vector<float>& end = ends[static_cast<std::size_t>(group.rank())];
      const std::vector<float> reduced = gradients_of(model);
      end.insert(end.end(), reduced.begin(), reduced.end());
      for (std::size_t i = 0; group.rank() == 0 && i < sizes.size(); ++i) {
        std::vector<Vector> all(static_cast<std::size_t>(ranks), Vector(sizes[i]));
        for (int rank = 0; rank < ranks; ++rank) {
          for (std::size_t k = 0; k < sizes[i]; ++k)
            all[static_cast<std::size_t>(rank)][k] = static_cast<double>(element(step, rank, i, k));
        }
        const Vector reference = adasum(all);
        const auto gradient = model.list[i].gradient.as<float>();
        CHECK(std::ranges::equal(gradient, reference, [&](float value, double expected) {
          return std::abs(static_cast<double>(value) - expected) <= 2e-6 * ranks;
        }));
      }
    }
  });
  for (const std::vector<float>& end : ends) {
    CHECK(end.size() == ends[0].size());
    CHECK(std::memcmp(end.data(), ends[0].data(), ends[0].size() * sizeof(float)) == 0);
  }
}

TEST_CASE("hooks::Adasum gives what the definition gives, to the same bits on all ranks") {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}, std::size_t{1} << 20})
      check_against_reference(ranks, bucket_bytes, {5, 1200, 0, 6, 1, 1152, 17});
  }
}

TEST_CASE("a rank may have no element of a bucket to combine") {
  check_against_reference(32, 1000, {5});
}

TEST_CASE("steady steps of hooks::Adasum allocate nothing") {
  run_well(2, [](const Group& group) {
    const dtrain::DdpOptions options{
        .bucket_bytes = 3000, .check_addresses = false, .progress = dtrain::stream::host::Progress::caller};
    BindingModel model({500, 2000, 7});
    DistributedDataParallel ddp{model, group, options, dtrain::hooks::Adasum{}};
    const auto step = [&] { run_step(ddp, model, [](std::size_t, std::size_t k) { return static_cast<float>(k); }); };
    for (int warm_up = 0; warm_up < 3; ++warm_up)
      step();
    const std::size_t before = support::allocations_of_this_thread;
    for (int repeat = 0; repeat < 20; ++repeat)
      step();
    CHECK(support::allocations_of_this_thread == before);
  });
}

TEST_CASE("equal gradients stay as they are, orthogonal ones are added, and those of one rank alone are its own") {
  run_well(4, [&](const Group& group) {
    BindingModel model({8, 8, 8});
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Adasum{}};
    const auto own = static_cast<std::size_t>(group.rank());
    run_step(ddp, model, [&](std::size_t i, std::size_t k) {
      return i == 0 ? 3.0F : i == 1 ? (k == own ? 2.0F : 0.0F) : own == 2 ? 5.0F : 0.0F;
    });
    for (std::size_t k = 0; k < 8; ++k) {
      CHECK(model.list[0].gradient.as<float>()[k] == 3.0F);
      CHECK(model.list[1].gradient.as<float>()[k] == (k < 4 ? 2.0F : 0.0F));
      CHECK(model.list[2].gradient.as<float>()[k] == 5.0F);
    }
  });
}

TEST_CASE("a gradient that is not finite on one rank is so on all, alone, and in that step alone") {
  run_well(4, [&](const Group& group) {
    BindingModel model({20, 20});
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Adasum{}};
    for (int step = 0; step < 2; ++step) {
      run_step(ddp, model, [&](std::size_t i, std::size_t k) {
        return step == 0 && group.rank() == 2 && i == 0 && k == 19 ? std::numeric_limits<float>::infinity() : 1.0F;
      });
      const auto first = model.list[0].gradient.as<float>();
      const bool is_finite = std::all_of(first.begin(), first.end(), [](float one) { return std::isfinite(one); });
      CHECK((is_finite == (step == 1) && model.holds(1, 1.0F)));
    }
  });
}

TEST_CASE("a variable of hooks::Adasum is for one model") {
  run_well(2, [](const Group& group) {
    BindingModel model({8});
    BindingModel other({8});
    dtrain::hooks::Adasum adasum;
    DistributedDataParallel ddp{model, group, {}, adasum};
    const auto wrap = [&] { DistributedDataParallel second{other, group, {}, adasum}; };
    CHECK_ERROR(wrap(), dtrain::Errc::invalid_argument,
                "a hooks::Adasum is given to a second model; each model needs its own",
                "in an elastic job: make the hook in the function of train()");
  });
}

TEST_CASE("hooks::Adasum sends as much as an all-reduce, and a table") {
  run_well(4, [](const Group& group) {
    BindingModel model({1536, 1536});
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Adasum{}};
    run_step(ddp, model, [](std::size_t, std::size_t) { return 1.0F; });
    const dtrain::CompressedTraffic traffic = ddp.statistics().hook;
    CHECK(traffic.bytes == 12288);
    // Tables of 2 gradients and 3 numbers each: for two pairs, then for one four.
    CHECK(traffic.bytes_sent == 12288 + (2 + 1) * 2 * 3 * 8);
  });
}

TEST_CASE("other numbers of ranks are refused in a sentence") {
  const std::string sentence =
      "hooks::Adasum combines the gradients of pairs of ranks, and so needs 1, 2, 4, 8, ... ranks, not 3; start as "
      "many, or leave the hook out";
  expect_ends(3, {sentence}, [](const Group& group) {
    BindingModel model({4, 4});
    DistributedDataParallel ddp{model, group, {}, dtrain::hooks::Adasum{}};
    run_step(ddp, model, [](std::size_t, std::size_t) { return 1.0F; });
  });
}

}  // namespace adasum_test
