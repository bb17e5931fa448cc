#include "dtrain/backend/nccl/library.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::backend::nccl::config_has_launch_order;
using dtrain::backend::nccl::config_of;
using dtrain::backend::nccl::has_implicit_launch_order;
using dtrain::backend::nccl::prepare_environment;

}  // namespace

TEST_CASE("NCCL launches in the order of the program's calls, unless the user says otherwise") {
  ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT");
  const bool is_configured = config_has_launch_order();
  CHECK(has_implicit_launch_order() == is_configured);
  prepare_environment();
  CHECK(order.text() == (is_configured ? "not set" : "1"));
  CHECK(has_implicit_launch_order());
  order.set("0");
  prepare_environment();
  CHECK(order.text() == "0");
  CHECK_FALSE(has_implicit_launch_order());
  order.set("1");
  CHECK(has_implicit_launch_order());
}

#if NCCL_VERSION_CODE >= 23100

TEST_CASE("from NCCL 2.31 on each communicator has its order of launches, unless the variable is set") {
  ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT");
  CHECK(config_has_launch_order());
  CHECK(config_of({}, "").launchOrderImplicit == 1);
  for (const char* const chosen : {"0", "1"}) {
    order.set(chosen);
    CHECK(config_of({}, "").launchOrderImplicit == NCCL_CONFIG_UNDEF_INT);
  }
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("a library that does not know the configuration's order gets it by the environment") {
  ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT");
  emulation::fail("ncclGetVersion", 1, ncclSystemError);
  prepare_environment();
  CHECK(order.text() == "1");
}
#endif

#else

TEST_CASE("before NCCL 2.31 the environment has the order of launches, also if the library is newer than the header") {
  CHECK_FALSE(config_has_launch_order());
}

#endif

TEST_CASE("a variable that makes NCCL block is warned of") {
  using dtrain::backend::nccl::warning_about;
  const char* const warning = warning_about({{"NCCL_COMM_BLOCKING", "1"}});
  REQUIRE(warning != nullptr);
  CHECK(std::string(warning).find(
            "NCCL_COMM_BLOCKING=1 makes NCCL block while ranks connect, where no timeout ends it") == 0);
  CHECK(warning_about({{"NCCL_COMM_BLOCKING", "0"}}) == nullptr);
  CHECK(warning_about({}) == nullptr);
}

#if DTRAIN_EMULATED_CUDA

// On a GPU the first test of these would end at the timeout if it failed, and other tests' NCCL has read the variable.
TEST_CASE("ranks that are threads and share a device are refused in the implicit order of launches, and run without") {
  using dtrain::backend::Nccl;
  const ScopedVariable shares("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  ScopedVariable order("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  REQUIRE(support::enough_devices(1));
  const auto open = [](const std::shared_ptr<support::FakeJob>& job, const support::RankThread& self) {
    using namespace std::chrono_literals;
    return Nccl::open_blocking(support::channel_context(job, self.rank(), 2, "group", 20s),
                               dtrain::Deadline::after(60s));
  };
  support::run_thread_ranks(2, [&, job = std::make_shared<support::FakeJob>(2)](support::RankThread& self) {
    const std::string text = support::error_of([&] { static_cast<void>(open(job, self)); }).what();
    CHECK_MESSAGE(
        text.find("ranks 0 and 1 on host host-0 are threads of one process and both compute on device GPU-") !=
            std::string::npos,
        text);
    CHECK_MESSAGE(text.find("make each rank a process, or set NCCL_LAUNCH_ORDER_IMPLICIT=0") != std::string::npos,
                  text);
  });
  order.set("0");
  support::run_thread_ranks(2, [&, job = std::make_shared<support::FakeJob>(2)](support::RankThread& self) {
    Nccl::StreamOwner stream;
    Nccl::Communicator communicator = open(job, self);
    const support::DeviceBuffer memory = support::on_device(std::vector<float>(8, 1.0F));
    const dtrain::BufferView view{memory.data(), 8, dtrain::DType::f32, {dtrain::DeviceKind::cuda, 0}};
    communicator.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, stream.ref());
    CHECK(completes(stream.ref()));
    CHECK(support::on_host<float>(memory.data(), 8) == std::vector<float>(8, 2.0F));
  });
}

#endif
