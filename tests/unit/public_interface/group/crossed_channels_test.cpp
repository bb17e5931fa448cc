// Channels never wait for each other, with ranks as threads; integration/crossed_channels_test.cpp has processes.
// ctest: TIMEOUT 120

#include "support/crossed_channels.hpp"

#include "unit/public_interface/prelude.hpp"

namespace {

template <class P>
void expect_no_deadlock(int ranks, support::Crossing crossing, Progress progress, std::size_t size) {
  run_well<P>(ranks, [&](const dtrain::ProcessGroup<P>& group) {
    CHECK(support::train_crossed(group, crossing, progress, size));
  });
}

}  // namespace

TEST_CASE("two wrappers and the group's collectives, in another order on one rank, end on every rank") {
  for (const int ranks : {2, 3}) {
    for (const Progress progress : {Progress::caller, Progress::thread}) {
      for (const auto& named : support::crossings) {
        for (const std::size_t size : {std::size_t{3}, std::size_t{100'000}}) {
          CAPTURE(ranks);
          CAPTURE(static_cast<int>(progress));
          CAPTURE(named.first);
          CAPTURE(size);
          expect_no_deadlock<Policy>(ranks, named.second, progress, size);
        }
      }
    }
  }
}

TEST_CASE("so do they on another backend, which calls the same hook") {
  expect_no_deadlock<dtrain::Policy<dtrain::launch::PerProcess, support::StoreBackend>>(2, support::Crossing::both,
                                                                                        Progress::caller, 3);
}

TEST_CASE("the wrappers and the group may make progress differently on different ranks") {
  run_well(3, [&](const Group& group) {
    const Progress progress = group.rank() == 1 ? Progress::thread : Progress::caller;
    CHECK(support::train_crossed(group, support::Crossing::both, progress, 1000));
  });
}

TEST_CASE("collectives inside backward may come at other moments on other ranks") {
  for (const Progress progress : {Progress::caller, Progress::thread}) {
    run_well(3, [&](const Group& group) {
      support::CrossedModel model(1, 1000);
      dtrain::DistributedDataParallel ddp{
          model, group, {.bucket_bytes = 0, .reduce_op = dtrain::ReduceOp::sum, .progress = progress}};
      for (int step = 0; step < 5; ++step) {
        ddp.backward([&](dtrain::Ready ready) {
          const std::size_t moment = static_cast<std::size_t>(group.rank() + step) % support::CrossedModel::count;
          for (std::size_t i = support::CrossedModel::count; i-- > 0;) {
            model.fill(i, group.rank(), step);
            ready(i);
            if (i == moment) {
              std::vector<float> loss{static_cast<float>(group.rank())};
              group.all_reduce(loss, dtrain::ReduceOp::average);
              CHECK(loss[0] == 1.0F);
            }
          }
        });
        CHECK(model.is_reduced(3, step));
      }
    });
  }
}

TEST_CASE("a wrapper can be made while another one's step is open, whose gradients other ranks wait for") {
  run_well(2, [&](const Group& group) {
    support::CrossedModel one(1, 10);
    support::CrossedModel two(2, 10);
    const dtrain::DdpOptions options{.reduce_op = dtrain::ReduceOp::sum, .progress = Progress::caller};
    dtrain::DistributedDataParallel first{one, group, options};
    auto step = first.begin();
    for (std::size_t i = 0; i < support::CrossedModel::count; ++i) {
      one.fill(i, group.rank(), 0);
      step.ready(i);
    }
    if (group.rank() == 1) step.finish();
    const dtrain::DistributedDataParallel second{two, group, options};
    if (group.rank() == 0) step.finish();
    CHECK(one.is_reduced(2, 0));
  });
}

TEST_CASE("a stream of the user's own that the group knows is run where the rank is stalled") {
  run_well(2, [&](const Group& group) {
    auto channel = dtrain::group::GroupAccess::of(group).open_channel("own");
    auto stream = group.open_stream();
    std::vector<float> mine{1};
    std::vector<float> all{2};
    const auto view = dtrain::buffer_view(std::span<float>(mine));
    const auto wait = [&] { wait_for(stream.ref(), dtrain::Deadline::after(group.timeout())); };
    channel.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, stream.ref());
    if (group.rank() == 0) {
      wait();
      group.all_reduce(all, dtrain::ReduceOp::sum);
    } else {
      group.all_reduce(all, dtrain::ReduceOp::sum);
      wait();
    }
    CHECK(mine[0] == 2);
    CHECK(all[0] == 4);
  });
}
