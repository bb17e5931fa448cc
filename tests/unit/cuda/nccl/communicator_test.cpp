#include "support/communicator_contract.hpp"
#include "unit/cuda/prelude.hpp"

COMMUNICATOR_CONTRACT(NcclRank)

#if DTRAIN_EMULATED_CUDA
TEST_CASE("the average of one rank is its sum: NCCL launches no kernel that multiplies by 1") {
  const int before = emulation::kernels_of_one_rank();
  run_ranks<NcclRank>(1, [&](NcclRank& self, RankThread&) {
    support::check_reductions(
        self, {4099}, [](DType dtype, ReduceOp op) { return op == ReduceOp::average && dtrain::is_float(dtype); });
  });
  CHECK(emulation::kernels_of_one_rank() == before);
}
#endif

TEST_CASE("NCCL's arenas are zeroed, are reduced in, and may outlive the communicator") {
  for (const int ranks : support::nccl_rank_counts()) {
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      NcclRank::Communicator::Allocation outlives;
      NcclRank self(job, thread.rank(), ranks);
      thread.doing("allocating");
      auto arena = self.communicator.allocate_blocking(4096, Deadline::after(60s));
      auto empty = self.communicator.allocate_blocking(0, Deadline::after(60s));
      CHECK(arena.bytes() == 4096);
      CHECK(empty.bytes() == 0);
      CHECK(on_host<std::uint8_t>(arena.data(), 4096) == std::vector<std::uint8_t>(4096));
      const std::vector<float> ones(1024, 1);
      support::check(cudaMemcpy(arena.data(), ones.data(), 4096, cudaMemcpyHostToDevice), "cudaMemcpy");
      const dtrain::BufferView view{arena.data(), 1024, DType::f32, {DeviceKind::cuda, self.device}};
      self.communicator.enqueue(AllReduce{view, view, ReduceOp::average}, self.stream.ref());
      CHECK(self.wait());
      CHECK(on_host<float>(arena.data(), 1024) == ones);
      outlives = std::move(arena);
    });
  }
}

TEST_CASE("arenas that are windows of symmetric memory serve as soon as they are there") {
  using Symmetric = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.symmetric_arenas = true}>;
  for (const int ranks : support::nccl_rank_counts()) {
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      support::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
      const Symmetric::StreamOwner stream;
      Symmetric::Communicator communicator = Symmetric::open_blocking(
          support::channel_context(job, thread.rank(), ranks, "group", 10s), Deadline::after(60s));
      thread.doing("allocating");
      const auto first = communicator.allocate_blocking(4096, Deadline::after(60s));
      const auto second = communicator.allocate_blocking(4096, Deadline::after(60s));
      thread.doing("reducing");
      const dtrain::BufferView view{second.data(), 1024, DType::f32, {DeviceKind::cuda, thread.rank()}};
      communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, stream.ref());
      CHECK(completes(stream.ref()));
      CHECK(!communicator.failure());
      thread.doing("closing");
    });
  }
#if DTRAIN_EMULATED_CUDA
  CHECK(emulation::mistakes_with_registered_memory() == 0);
  emulation::reset();
#endif
}

TEST_CASE("an arena is deregistered and freed on its own device, once no stream uses it") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread&) {
    auto arena = self.communicator.allocate_blocking(4096, Deadline::after(60s));
    const dtrain::stream::cuda::Stream compute;
    support::enqueue_delay(compute.ref(), 50ms);
    support::check(cudaMemsetAsync(arena.data(), 1, 4096, compute.ref().native()), "cudaMemsetAsync");
    std::thread elsewhere([gone = std::move(arena)]() mutable { gone = {}; });  // device 0 is that thread's
    elsewhere.join();
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    CHECK(self.wait());
  });
#if DTRAIN_EMULATED_CUDA
  CHECK(emulation::mistakes_with_registered_memory() == 0);
  emulation::reset();
#endif
}

TEST_CASE("what NCCL cannot do is refused in a sentence, and the communicator serves on") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank self(job, 0, 1);
  const auto stream = self.stream.ref();
  const DeviceBuffer memory = on_device(std::vector<std::int32_t>{1, 2, 3});
  const auto view = self.view(memory, 3, DType::i32);
  const auto average = error_of([&] { self.communicator.enqueue(AllReduce{view, view, ReduceOp::average}, stream); });
  REQUIRE(average.code());
  CHECK(average.code() == make_error_code(Errc::unsupported));
  CHECK(std::string(average.what()).find("average of i32 by NCCL would be wrong") != std::string::npos);
  auto host = view;
  host.device = {};
  const auto of_host = error_of([&] { self.communicator.enqueue(Broadcast{host, 0}, stream); });
  REQUIRE(of_host.code());
  CHECK(std::string(of_host.what()).find("takes memory of cuda:0, not memory of host") != std::string::npos);
  const auto elsewhere = dtrain::stream::cuda::StreamRef(stream.native(), 7);
  const auto of_other = error_of([&] { self.communicator.enqueue(Barrier{}, elsewhere); });
  REQUIRE(of_other.code());
  CHECK(std::string(of_other.what()).find("takes streams of cuda:0, not one of cuda:7") != std::string::npos);
  CHECK(error_of([&] { static_cast<void>(self.communicator.split_blocking(-1, 0, Deadline::after(1s))); }).code());
  self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, stream);
  CHECK(self.wait());
}

TEST_CASE("a group of all-gathers gathers each, of any type, and is one operation of the channel") {
  constexpr int ranks = 3;
  if (!NcclRank::can_run(ranks)) return;
  run_ranks<NcclRank>(ranks, [&](NcclRank& self, RankThread& thread) {
    const auto own = static_cast<float>(thread.rank());
    const auto floats = self.put(std::vector<float>(2 * ranks, own));
    const auto bytes = self.put(std::vector<std::uint8_t>(5 * ranks, static_cast<std::uint8_t>(thread.rank())));
    const auto gather_of = [&](const NcclRank::Memory& memory) {
      BufferView block = memory.view();
      block.count /= ranks;
      block.data += block.bytes() * static_cast<std::size_t>(thread.rank());
      return AllGather{block, memory.view()};
    };
    const std::array gathers{gather_of(floats), gather_of(bytes)};
    const std::span<const AllGather> all(gathers);
    CHECK(to_string(nccl::describe_together(all)) == "all_gather of 13 u8 a rank");
    CHECK(to_string(nccl::describe_together(all.first(1))) == "all_gather of 2 f32 a rank");
    self.communicator.enqueue(all, self.stream.ref());
    CHECK(self.wait());
    CHECK(NcclRank::get<float>(floats) == std::vector<float>{0, 0, 1, 1, 2, 2});
    CHECK(NcclRank::get<std::uint8_t>(bytes)[14] == 2);
    CHECK(NcclRank::get<std::uint8_t>(bytes)[5] == 1);
    std::array wrong = gathers;
    wrong[1].output.device = {};
    const auto refused = [&] { self.communicator.enqueue(std::span<const AllGather>(wrong), self.stream.ref()); };
    CHECK_ERROR(refused(), Errc::unsupported, "not memory of host");
    wrong[1].output.count -= ranks;
    CHECK_ERROR(refused(), Errc::invalid_argument, "all_gather on 3 ranks");
    self.communicator.enqueue(all.first(0), self.stream.ref());
  });
}

TEST_CASE("more operations than are watched one by one go through, of which the host waits for none") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread&) {
    const DeviceBuffer memory = on_device(std::vector<double>{1});
    const auto view = self.view(memory, 1, DType::f64);
    support::enqueue_delay(self.stream.ref(), 20ms);
    for (int i = 0; i < 200; ++i) {
      self.communicator.enqueue(AllReduce{view, view, i % 2 == 0 ? ReduceOp::sum : ReduceOp::average},
                                self.stream.ref());
    }
    CHECK(self.wait());
    CHECK(on_host<double>(memory.data(), 1)[0] == std::ldexp(1.0, 100));
  });
}

TEST_CASE("a collective that is captured in a CUDA graph runs with each launch of it") {
  if (!support::enough_devices(2)) return dtrain_test::skip("there are no two devices");
  std::barrier both(2);  // while one captures in the global mode, the other must not ask events
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    const cudaStream_t stream = self.stream.ref().native();
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    CHECK(self.wait());
    thread.doing("capturing");
    const dtrain::stream::cuda::Stream other;
    support::enqueue_delay(other.ref(), 300ms);
    self.communicator.enqueue(Barrier{}, other.ref());  // in flight meanwhile, and watched
    both.arrive_and_wait();
    support::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    std::this_thread::sleep_for(120ms);  // the watching threads look meanwhile
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    support::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    both.arrive_and_wait();
    support::check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{1, 1});
    thread.doing("launching");
    for (int i = 0; i < 3; ++i)
      support::check(cudaGraphLaunch(runnable, stream), "cudaGraphLaunch");
    CHECK(self.wait());
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{8, 8});
    support::check(cudaGraphExecDestroy(runnable), "cudaGraphExecDestroy");
    support::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
}

TEST_CASE("an initialisation that a rank does not come to ends by its deadline, and says what to check") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto job = std::make_shared<FakeJob>(2);
  const auto began = Deadline::Clock::now();
  const auto error = error_of([&] { NcclRank(job, 0, 2, "alone", 10s, 500ms); });
  REQUIRE(error.code());
  CAPTURE(std::string(error.what()));
  CHECK(error.code() == make_error_code(Errc::timeout));
  CHECK(std::string(error.what()).find("had not connected rank 0 of 2 after") != std::string::npos);
  CHECK(Deadline::Clock::now() - began < (DTRAIN_THREAD_SANITIZER ? 20s : 8s));
  CHECK(job->latch(1)->failed());
}

TEST_CASE("options reach NCCL, and what it does not know yet is left out") {
  using dtrain::backend::NcclOptions;
  using dtrain::backend::nccl::Launches;
  const ncclConfig_t plain = dtrain::backend::nccl::config_of({}, Launches::none, "plain");
  CHECK(plain.blocking == 0);
  CHECK(plain.splitShare == 0);
  CHECK(plain.maxCTAs == NCCL_CONFIG_UNDEF_INT);
  const ncclConfig_t chosen = dtrain::backend::nccl::config_of(
      {.min_ctas = 2, .max_ctas = 8, .cga_cluster_size = 0, .traffic_class = 3, .share_splits = true},
      Launches::in_caller, "");
  CHECK(chosen.blocking == 1);
  CHECK(chosen.minCTAs == 2);
  CHECK(chosen.maxCTAs == 8);
  CHECK(chosen.cgaClusterSize == 0);
  CHECK(chosen.splitShare == 1);
#if NCCL_VERSION_CODE >= 22602
  CHECK(chosen.trafficClass == 3);
#endif
#if NCCL_VERSION_CODE >= 22703
  CHECK(std::string(plain.commName) == "plain");
  CHECK(plain.nvlsCTAs == NCCL_CONFIG_UNDEF_INT);
  CHECK(plain.CTAPolicy == NCCL_CONFIG_UNDEF_INT);
  using dtrain::backend::CtaPolicy;
  const auto policy = [](CtaPolicy wanted) {
    return dtrain::backend::nccl::config_of({.nvls_ctas = 5, .cta_policy = wanted}, Launches::none, "");
  };
  CHECK(policy(CtaPolicy::speed).nvlsCTAs == 5);
  CHECK(policy(CtaPolicy::speed).CTAPolicy == 0);
  CHECK(policy(CtaPolicy::efficiency).CTAPolicy == 1);
#endif
#if NCCL_VERSION_CODE >= 22803
  CHECK(policy(CtaPolicy::zero).CTAPolicy == 2);
#endif
#if NCCL_VERSION_CODE >= 22902
  CHECK(plain.graphUsageMode == NCCL_CONFIG_UNDEF_INT);
  CHECK(dtrain::backend::nccl::config_of({.graph_usage_mode = 1}, Launches::none, "").graphUsageMode == 1);
#endif
  using Custom = dtrain::backend::NcclWith<NcclOptions{.max_ctas = 4, .symmetric_arenas = true}>;
  static_assert(dtrain::backend::Backend<Custom>);
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  support::check(cudaSetDevice(0), "cudaSetDevice");
  const auto job = std::make_shared<FakeJob>(1);
  Custom::Communicator communicator =
      Custom::open_blocking(support::channel_context(job, 0, 1, "group", 10s), Deadline::after(60s));
  const auto window = communicator.allocate_blocking(1 << 20, Deadline::after(60s));
  CHECK(window.bytes() == 1 << 20);
}

TEST_CASE("NCCL's unique id goes through the store as its bytes, and other lengths are refused") {
  using dtrain::backend::nccl::unique_id_from;
  ncclUniqueId id{};
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(i * 7);
  const std::string bytes(id.internal, sizeof id.internal);
  CHECK(std::memcmp(unique_id_from(bytes).internal, id.internal, sizeof id.internal) == 0);
  CHECK_THROWS_AS(unique_id_from(""), Error);
  CHECK_THROWS_AS(unique_id_from(bytes.substr(1)), Error);
  CHECK_THROWS_AS(unique_id_from(bytes + "0"), Error);
  CHECK_THROWS_AS(unique_id_from(bytes + bytes), Error);
}
