// Which hooks a wrapper keeps, and which it borrows.

#include "unit/public_interface/prelude.hpp"

namespace hook_lifetime_test {

/// Reduces as without a hook. A copy has the same counter, and counts by itself.
struct CountedHook {
  std::shared_ptr<int> reduced;  ///< buckets; null: another object has moved it away
  int reduced_here = 0;

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    ++*reduced;
    ++reduced_here;
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
};

/// A hook whose reduce() a const variable has.
struct ConstHook {
  int* reduced;

  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) const {
    ++*reduced;
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
};

using Ddp = DistributedDataParallel<Model, front_test::Policy>;
using ListDdp = DistributedDataParallel<dtrain::ParameterList, front_test::Policy>;

template <class Wrapper>
void step(Wrapper& ddp, Model& model, float value) {
  ddp.backward([&](Ready ready) {
    model.gradients[0].assign(model.gradients[0].size(), value);
    ready(0);
  });
  CHECK(model.gradients[0][0] == value);
}

/// @param list the model, or its list
template <class Wrapper, class M>
void check_kept(const Group& group, Model& model, M& list) {
  const auto reduced = std::make_shared<int>(0);
  CountedHook hook{reduced};
  std::optional<Wrapper> ddp;
  ddp.emplace(list, group, DdpOptions{}, std::move(hook));
  CHECK(hook.reduced == nullptr);  // moved, not copied
  CHECK(reduced.use_count() == 2);
  step(*ddp, model, 3);
  CHECK(*reduced == 1);
  CHECK(hook.reduced_here == 0);
  ddp.reset();
  CHECK(reduced.use_count() == 1);
}

TEST_CASE("a wrapper moves an rvalue of a hook into itself, and destroys it at its own end") {
  run_well(2, [](const Group& group) {
    Model model({64});
    check_kept<Ddp>(group, model, model);
    check_kept<ListDdp>(group, model, model.list);
  });
}

template <class Wrapper, class M>
void check_borrowed(const Group& group, Model& model, M& list) {
  const auto reduced = std::make_shared<int>(0);
  CountedHook hook{reduced};
  const auto lent = std::ref(hook);
  for (int wrapper = 1; wrapper <= 2; ++wrapper) {
    std::optional<Wrapper> ddp;
    if (wrapper == 1) {
      ddp.emplace(list, group, DdpOptions{}, std::ref(hook));
    } else {
      ddp.emplace(list, group, DdpOptions{}, lent);
    }
    CHECK(reduced.use_count() == 2);
    step(*ddp, model, 3);
    CHECK(hook.reduced_here == wrapper);
  }
  CHECK(hook.reduced == reduced);
  CHECK(reduced.use_count() == 2);
}

TEST_CASE("a wrapper calls the variable of std::ref itself, which outlives it and may be given to the next wrapper") {
  run_well(2, [](const Group& group) {
    Model model({64});
    check_borrowed<Ddp>(group, model, model);
    check_borrowed<ListDdp>(group, model, model.list);
  });
}

TEST_CASE("a const variable is borrowed by std::cref") {
  run_well(2, [](const Group& group) {
    int reduced = 0;
    const ConstHook hook{&reduced};
    Model model({64});
    DistributedDataParallel ddp{model, group, {}, std::cref(hook)};
    step(ddp, model, 3);
    CHECK(reduced == 1);
  });
}

TEST_CASE("state() of a variable that was given by std::ref has what the wrapper's steps have left in it") {
  run_well(2, [](const Group& group) {
    dtrain::hooks::Cast<bfloat16> hook{{.error_feedback = dtrain::hooks::every_parameter}};
    Model model({64});
    std::optional<Ddp> ddp;
    ddp.emplace(model, group, DdpOptions{}, std::ref(hook));
    const auto error = [&] {
      const std::vector<dtrain::NamedTensor> state = hook.state(group);
      REQUIRE(state.size() == 1);
      return state[0].value.as<float>()[0];
    };
    CHECK(error() == 0);
    const float value = 1 + 0x1p-10F;  // rounded to 1
    ddp->backward([&](Ready ready) {
      model.gradients[0].assign(64, value);
      ready(0);
    });
    const float left = error();
    CHECK(left == value - 1);
    ddp.reset();
    CHECK(error() == left);
  });
}

}  // namespace hook_lifetime_test
