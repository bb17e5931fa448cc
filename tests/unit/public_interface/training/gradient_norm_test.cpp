// The norm of the reduced gradients: its value, its bits on all ranks, clipping, and wrong use.

#include "unit/public_interface/prelude.hpp"

namespace {

const std::vector<std::size_t> sizes{7, 1000, 0, 33, 5000, 70'001};

/// One step with random gradients, which differ between ranks.
template <class Ddp, class AnyModel>
void step(Ddp& ddp, AnyModel& model, unsigned seed, dtrain::StepOptions options = {.measure_norm = true}) {
  std::mt19937 random(seed * 100 + static_cast<unsigned>(ddp.group().rank()));
  std::normal_distribution<float> normal;
  ddp.backward(
      [&](Ready ready) {
        for (std::size_t i = 0; i < model.list.size(); ++i) {
          for (float& element : model.list[i].gradient.template as<float>())
            element = normal(random);
          ready(i);
        }
      },
      options);
}

/// The norm of what the model has after a step.
double plain_norm(const std::vector<dtrain::Parameter>& parameters) {
  double sum = 0;
  for (const dtrain::Parameter& parameter : parameters) {
    for (const float element : parameter.gradient.as<float>())
      sum += static_cast<double>(element) * static_cast<double>(element);
  }
  return std::sqrt(sum);
}

template <class AnyModel, class AnyPolicy = front_test::Policy>
void check_norms(int ranks, std::size_t bucket_bytes) {
  std::vector<std::vector<double>> norms(static_cast<std::size_t>(ranks));
  run_well<AnyPolicy>(ranks, [&](const dtrain::ProcessGroup<AnyPolicy>& group) {
    AnyModel model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
    for (unsigned k = 0; k < 4; ++k) {
      step(ddp, model, k);
      const GradientNorm measured = ddp.gradient_norm();
      const double expected = plain_norm(model.list);
      CHECK((measured.finite && std::abs(measured.norm / expected - 1) < 1e-12));
      norms[static_cast<std::size_t>(group.rank())].push_back(measured.norm);
    }
  });
  for (const std::vector<double>& of_rank : norms) {
    CHECK(of_rank.size() == 4);
    CHECK(of_rank == norms[0]);
  }
}

}  // namespace

TEST_CASE("the norm is that of the reduced gradients, with the same bits on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{4096}, std::size_t{25} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      check_norms<Model>(ranks, bucket_bytes);
      check_norms<BindingModel>(ranks, bucket_bytes);
    }
  }
}

TEST_CASE("a communicator that gives no sums has the norm from a second pass, with the same bits on all ranks") {
  using Nodes =
      dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Hierarchical<>>;
  static_assert(!dtrain::backend::CanSumSquares<Nodes::ChannelBackend::Communicator>);
  for (const std::size_t bucket_bytes : {std::size_t{4096}, std::size_t{25} << 20}) {
    CAPTURE(bucket_bytes);
    check_norms<Model, Nodes>(3, bucket_bytes);
  }
}

TEST_CASE("the norm is that of gradients that a ring has reduced, with the same bits on all ranks") {
  using Ring = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Ring>;
  static_assert(dtrain::backend::CanSumSquares<Ring::ChannelBackend::Communicator>);
  for (const std::size_t bucket_bytes : {std::size_t{4096}, std::size_t{25} << 20}) {
    CAPTURE(bucket_bytes);
    check_norms<Model, Ring>(3, bucket_bytes);
  }
}

TEST_CASE("a rank that measures has the norm when others do not, and the gradients are the same") {
  for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{25} << 20}) {
    run_well(3, [&](const Group& group) {
      BindingModel model(sizes);
      DistributedDataParallel ddp{model, group, {.bucket_bytes = bucket_bytes}};
      for (unsigned k = 0; k < 6; ++k) {
        const bool measures = k == 5 || k % 3 == static_cast<unsigned>(group.rank());
        step(ddp, model, k, {.measure_norm = measures});
        const double expected = plain_norm(model.list);
        if (measures) {
          CHECK(std::abs(ddp.gradient_norm().norm / expected - 1) < 1e-12);
        } else {
          CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "the last step did not measure it");
        }
      }
    });
  }
}

TEST_CASE("an infinity or a NaN on one rank makes the norm of all ranks not finite, and only of that step") {
  run_well(3, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1.0F}) {
      ddp.backward(
          [&](Ready ready) {
            for (std::size_t i = 0; i < sizes.size(); ++i) {
              if (i == 3 && group.rank() == 1) model.gradients[i].back() = bad;
              ready(i);
            }
          },
          {.measure_norm = true});
      CHECK(ddp.gradient_norm().finite == (bad == 1.0F));
      const std::vector<float> before = model.gradients[4];
      if (!ddp.gradient_norm().finite) {
        ddp.clip_gradients(1e-3);  // leaves them
        CHECK(model.gradients[4] == before);
      }
      for (std::vector<float>& gradient : model.gradients)
        std::fill(gradient.begin(), gradient.end(), 0.0F);
    }
  });
}

TEST_CASE("clipping multiplies by max_norm / (norm + 1e-6) if that is below one, and keeps the norm before") {
  run_well(2, [&](const Group& group) {
    BindingModel model(sizes);
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 4096}};
    step(ddp, model, 1);
    const double norm = plain_norm(model.list);
    const std::vector<float> before(ddp.gradient(4).as<float>().begin(), ddp.gradient(4).as<float>().end());
    ddp.clip_gradients(2 * norm);
    CHECK(std::abs(ddp.gradient_norm().before_clipping / norm - 1) < 1e-12);
    CHECK(std::abs(ddp.gradient_norm().norm / norm - 1) < 1e-12);
    CHECK(std::equal(before.begin(), before.end(), ddp.gradient(4).as<float>().begin()));
    ddp.clip_gradients(0.5);
    CHECK(std::abs(ddp.gradient_norm().before_clipping / norm - 1) < 1e-12);
    const auto factor = static_cast<float>(0.5 / (norm + 1e-6));
    for (std::size_t i = 0; i < before.size(); ++i)
      CHECK(std::abs(ddp.gradient(4).as<float>()[i] - before[i] * factor) <= 1e-6F * std::abs(before[i]));
    CHECK(std::abs(plain_norm(model.list) - 0.5) < 1e-5);
    CHECK(std::abs(ddp.gradient_norm().norm - 0.5) < 1e-5);

    const std::vector<float> clipped = gradients_of(model);
    const GradientNorm measured = ddp.gradient_norm();
    step(ddp, model, 1, {.clip_norm = 0.5});  // the same within the step
    CHECK(gradients_of(model) == clipped);
    CHECK(ddp.gradient_norm().norm == measured.norm);
    CHECK(ddp.gradient_norm().before_clipping == measured.before_clipping);
    step(ddp, model, 1, {.clip_norm = 2 * norm});
    CHECK(std::equal(before.begin(), before.end(), ddp.gradient(4).as<float>().begin()));
  });
}

TEST_CASE("16-bit gradients and unused parameters count as what was reduced") {
  run_well(2, [&](const Group& group) {
    std::vector<dtrain::float16> half_values(40), half(40, dtrain::float16(3.0F));
    std::vector<dtrain::bfloat16> brain_values(9), brain(9, dtrain::bfloat16(2.0F));
    std::vector<float> values(5), unused(5, 100.0F);
    struct Mixed {
      std::vector<dtrain::Parameter> list;
      const std::vector<dtrain::Parameter>& parameters() const { return list; }
    } model{{{"half", dtrain::tensor_view(half_values), dtrain::tensor_view(half)},
             {"brain", dtrain::tensor_view(brain_values), dtrain::tensor_view(brain)},
             {"unused", dtrain::tensor_view(values), dtrain::tensor_view(unused)}}};
    DistributedDataParallel ddp{model, group, {.allow_unused_parameters = true}};
    ddp.backward(
        [](Ready ready) {
          ready(0);
          ready(1);
        },
        {.measure_norm = true});
    CHECK(ddp.gradient_norm().norm == std::sqrt(40 * 9.0 + 9 * 4.0));
    CHECK(unused[0] == 0);
    ddp.scale_gradients(0.5);
    CHECK((static_cast<float>(half[39]) == 1.5F && static_cast<float>(brain[0]) == 1.0F));
  });
}

TEST_CASE("only the step that reduces measures, and without a measurement the norm is refused") {
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    DistributedDataParallel ddp{model, group};
    CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "StepOptions::measure_norm");
    {
      const auto held = ddp.no_sync();
      step(ddp, model, 1);
    }
    CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "StepOptions::measure_norm");
    step(ddp, model, 2);
    DistributedDataParallel moved = std::move(ddp);
    CHECK(moved.gradient_norm().norm > 0);
    step(moved, model, 3, {});
    CHECK_ERROR(moved.gradient_norm(), Errc::invalid_argument, "StepOptions::measure_norm");
    CHECK_ERROR(moved.clip_gradients(1), Errc::invalid_argument, "StepOptions::measure_norm");
    CHECK_ERROR(moved.scale_gradients(2), Errc::invalid_argument, "StepOptions::measure_norm");
  });
}

TEST_CASE("a max_norm that is not positive is refused") {
  run_well(1, [](const Group& group) {
    Model model({10});
    DistributedDataParallel ddp{model, group};
    step(ddp, model, 1);
    for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
      CHECK_ERROR(ddp.clip_gradients(bad), Errc::invalid_argument, "give a positive one");
  });
}
