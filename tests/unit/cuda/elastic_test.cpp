// Elastic jobs over NCCL: all ranks abort, and initialise anew, in living processes.

#include "dtrain/elastic.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

#include "support/elastic_process.hpp"
#include "support/process_holdings.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

namespace elastic_over_nccl {

using Group = dtrain::ProcessGroup<NcclPolicy>;
using Job = dtrain::Elastic<NcclPolicy>;
using rendezvous_test::FormationProcess;
using Model = Binding<DeviceModel>;
using Function = std::function<void(const Job&, const Group&, Model&)>;

constexpr std::size_t count = 1000;

/// Where a worker fails, in the second step of an attempt.
enum class Point { before_ready, last_ready, behind_step, in_commit, none };

dtrain::rendezvous::FormationOptions of_workers(int number) {
  dtrain::rendezvous::FormationOptions options;
  options.min_workers = options.max_workers = number;
  options.reconnect_timeout = 1ms;  // nobody says that the thread of a worker has ended
  return options;
}

/// Whole numbers, so that an average is exact.
float gradient_of(std::uint64_t step) {
  return static_cast<float>(1 + step % 7);
}

/// A worker whose device has the number of its slot.
class Worker {
 public:
  Worker(const FormationProcess& launcher, int slot)
      : slot_(taken(slot)),
        process_(support::elastic_process(launcher.address().port, slot, 2)),
        worker_(process_),
        job(worker_, options_) {
    model.add<float>("w", count, 0);
  }

  /// @returns what train() threw
  std::string run(const Function& function) {
    try {
      job.train([&](Group group) {
        CHECK(current_device() == slot_);
        check(cudaSetDevice(0), "cudaSetDevice");  // the next attempt begins on the worker's device all the same
        const dtrain::stream::cuda::DeviceGuard guard(slot_);
        function(job, group, model);
      });
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }

  /// Trains until `ends` when an attempt begins, with the weights in host memory, too. @returns what train() threw
  std::string train(const std::atomic<bool>& ends, Point fails_at = Point::none) {
    job.keep({{"w", dtrain::tensor_view(kept)}});
    return run([&](const Job&, const Group& group, Model&) {
      const TensorView weights = model.parameters()[0].value;
      support::write(weights.data, kept);
      DistributedDataParallel ddp{model, group};
      for (int i = 0; !ends; ++i) {
        const auto point = [&](Point at) {
          static std::atomic<int> mistakes{0};  // the same text twice before a commit would end the job
          if (i == 1 && at == fails_at) throw std::runtime_error("mistake " + std::to_string(++mistakes));
        };
        model.prepare(0, std::vector<float>(count, gradient_of(job.step())));
        ddp.backward([&](Ready ready) {
          point(Point::before_ready);
          model.compute(0, ready);
          point(Point::last_ready);
        });
        point(Point::behind_step);
        job.commit([&] {
          const auto reduced = support::on_host<float>(model.parameters()[0].gradient.data, count);  // finish() waited
          for (std::size_t j = 0; j < count; ++j) {
            kept[j] += reduced[j];
          }
          point(Point::in_commit);
          support::write(weights.data, kept);
        });
      }
    });
  }

 private:
  static int taken(int slot) {
    check(cudaSetDevice(slot), "cudaSetDevice");
    return slot;
  }

  const int slot_;
  const dtrain::launch::RankProcess process_;
  dtrain::elastic::ElasticWorker worker_;
  const dtrain::GroupOptions options_{};

 public:
  const Job job;
  Model model;
  std::vector<float> kept = std::vector<float>(count);
};

std::string run_alone(const Function& function) {
  const EmulatedDevices emulated(1);
  const FormationProcess launcher(of_workers(1));
  return Worker(launcher, 0).run(function);
}

TEST_CASE("ranks over NCCL form anew 100 times, each on its own device, and hold nothing of the attempts before") {
  const EmulatedDevices emulated(2);
  const FormationProcess launcher(of_workers(2));
  std::atomic<bool> ends{false};
  std::string why;
  std::vector<float> weights;
  std::uint64_t steps = 0;
  std::thread living([&] {
    Worker survivor(launcher, 1);  // rank 0 of later attempts, on device 1
    why = survivor.train(ends);
    weights = survivor.kept;
    steps = survivor.job.step();
  });
  std::vector<support::ProcessHoldings> held;
  std::vector<std::size_t> on_devices;
  for (int i = 0; i < 100; ++i) {
    CAPTURE(i);
    Worker failing(launcher, 0);
    CHECK_CONTAINS(failing.train(ends, static_cast<Point>(i % 4)), "mistake ");
    held.emplace_back();
    on_devices.push_back(emulation::allocated_device_bytes());
  }
  ends = true;  // while the survivor waits for another worker
  Worker last(launcher, 0);
  CHECK(last.train(ends) == "");
  living.join();
  CHECK(why == "");
  float expected = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    expected += gradient_of(step);
  }
  CHECK(steps >= 100);
  CHECK(weights == std::vector<float>(count, expected));
  CHECK(last.kept == weights);
  CHECK(held.back().descriptors <= held[10].descriptors + 8);  // the last attempt may not be over
  CHECK(held.back().threads <= held[10].threads + 8);
  CHECK(on_devices.back() <= on_devices[10] + 100 * sizeof(float) * count);
}

TEST_CASE("a survivor whose device breaks ends before it makes another attempt fail, and names the device") {
  const EmulatedDevices emulated(5);
  std::atomic<std::uint64_t> attempts{0};
  rendezvous_test::FormationCallbacks callbacks;
  callbacks.on_attempt = [&attempts](std::uint64_t attempt, const auto&) { attempts = attempt; };
  const FormationProcess launcher(of_workers(3), {}, callbacks);
  std::vector<std::string> thrown(5);
  const auto work = [&](int slot) {
    Worker worker(launcher, slot);
    thrown[static_cast<std::size_t>(slot)] = worker.run([slot](const Job& job, const Group& group, Model& model) {
      DistributedDataParallel ddp{model, group};
      while (job.step() < 4) {
        try {
          ddp.backward([&](Ready ready) {
            if (slot == 1 && job.step() == 2) throw std::runtime_error("mistake of worker 1");
            model.compute(0, ready);
          });
        } catch (const dtrain::JobFailed&) {
          if (slot == 2) emulation::break_device(2);
          throw;
        }
        job.commit();
      }
    });
  };
  const auto work_and_be_replaced = [&](int slot, int next) {
    work(slot);
    work(next);
  };
  std::thread second(work_and_be_replaced, 1, 3);
  std::thread third(work_and_be_replaced, 2, 4);
  work(0);
  second.join();
  third.join();
  CHECK(attempts == 2);
  CHECK(thrown[1] == "mistake of worker 1");
  CHECK_CONTAINS(thrown[2], "every call of CUDA fails on the device of local rank 2",
                 "cudaErrorIllegalAddress, an illegal memory access was encountered",
                 "only another process can use it again, so this one ends, to be replaced",
                 "the attempt had ended with");
  for (const int lives : {0, 3, 4}) {
    CHECK(thrown[static_cast<std::size_t>(lives)] == "");
  }
}

TEST_CASE("a worker of an elastic job refuses NCCL before 2.27, an ordinary rank does not") {
  const EmulatedDevices emulated(1);
  const ScopedVariable version("DTRAIN_EMULATED_NCCL", "22605");
  dtrain::launch::RankProcess process = support::elastic_process(1, 0, 1);
  CHECK_ERROR(dtrain::elastic::select_device<NcclPolicy>(process), Errc::usage,
              "an elastic job needs NCCL 2.27 or newer, and this process has NCCL 2.26.5",
              "put a newer libnccl.so.2 first on the library path");
  process.min_ranks = 0;
  CHECK_NOTHROW(dtrain::elastic::select_device<NcclPolicy>(process));
}

TEST_CASE("the host waits for the reduction of a step of an elastic attempt") {
  std::atomic<bool> has_run{false};
  CHECK(run_alone([&has_run](const Job&, const Group& group, Model& model) {
          DistributedDataParallel ddp{model, group};
          ddp.backward([&](Ready ready) {
            enqueue_on_host(model.stream(), [&has_run] {
              std::this_thread::sleep_for(50ms);
              has_run = true;
            });
            model.compute(0, ready);
          });
          CHECK(has_run);
        }) == "");
}

TEST_CASE("a step of an elastic attempt cannot be captured") {
  const std::string thrown = run_alone([](const Job&, const Group& group, Model& model) {
    DistributedDataParallel ddp{model, group};
    check(cudaStreamBeginCapture(model.stream().native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      ddp.backward([&](Ready ready) { model.compute(0, ready); });
    } catch (...) {
      cudaGraph_t graph = nullptr;
      static_cast<void>(dtrain::stream::cuda::quiet(cudaStreamEndCapture(model.stream().native(), &graph)));
      throw;
    }
  });
  CHECK_CONTAINS(thrown, "a step was captured in a CUDA graph in an elastic job", "make the steps without a graph");
}

TEST_CASE("local steps on a device are refused in an elastic job") {
  const std::string thrown = run_alone([](const Job&, const Group& group, Model& model) {
    dtrain::hooks::LocalSgd local{{.every = 2}};
    DistributedDataParallel ddp{model, group, {}, std::ref(local)};
  });
  CHECK_CONTAINS(thrown, "as hooks::LocalSgd does, was given a model in device memory in an elastic job");
}

TEST_CASE("keep() refuses device memory, and says what to keep") {
  const EmulatedDevices emulated(1);
  const FormationProcess launcher(of_workers(1));
  Worker worker(launcher, 0);
  CHECK_ERROR(worker.job.keep(dtrain::parameter_values(worker.model.parameters())), Errc::unsupported,
              "the tensor 'w' that keep() was given is on cuda:0", "keep a copy on the host, write it in commit()");
}

}  // namespace elastic_over_nccl

#endif  // DTRAIN_EMULATED_CUDA
