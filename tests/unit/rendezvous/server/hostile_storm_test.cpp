// ctest: RUN_SERIAL ON TIMEOUT 120

#include "unit/rendezvous/prelude.hpp"

namespace {

constexpr std::size_t stranger_count = 1000;
constexpr std::size_t most_strangers = 256;  ///< that the store keeps; the others are closed and come again

/// As many descriptors as the test needs, where that is allowed.
bool raise_descriptors(rlim_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < wanted) {
    return false;
  }
  limit.rlim_cur = std::max(limit.rlim_cur, wanted);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

std::size_t resident_kibibytes() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  REQUIRE(file != nullptr);
  unsigned long long kibibytes = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr && std::sscanf(line, "VmRSS: %llu", &kibibytes) != 1) {
  }
  std::fclose(file);
  return static_cast<std::size_t>(kibibytes);
}

/// Until they are gone, puts `make(i)` in the place of client i when the store has closed it.
template <class Make>
void keep_connected(std::vector<std::unique_ptr<RawClient>>& clients, const std::atomic<bool>& gone, Make make) {
  while (!gone) {
    for (std::size_t i = 0; i < clients.size() && !gone; ++i) {
      if (clients[i]->has_been_closed()) clients[i] = make(i);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// Strangers who say Hello and stay (who is closed comes again), and others who only connect, 3000 a second.
class HelloSenders {
 public:
  explicit HelloSenders(std::uint16_t port) : port_(port) {
    for (std::size_t i = 0; i < 1100; ++i) {
      senders_.push_back(greeting());
    }
    staying_ = std::jthread([this] { keep_connected(senders_, gone_, [this](std::size_t) { return greeting(); }); });
    connecting_ = std::jthread([this] { connect(); });
  }
  HelloSenders(const HelloSenders&) = delete;
  HelloSenders& operator=(const HelloSenders&) = delete;
  ~HelloSenders() { gone_ = true; }

 private:
  std::unique_ptr<RawClient> greeting() const {
    auto client = std::make_unique<RawClient>(port_);
    client->send_frame(encode(RawClient::hello()));
    return client;
  }

  void connect() {
    auto next = std::chrono::steady_clock::now();
    std::deque<RawClient> open;
    while (!gone_) {
      open.emplace_back(port_);
      if (open.size() > 1000) {
        open.pop_front();
      }
      next = std::max(next + std::chrono::microseconds(333), std::chrono::steady_clock::now());
      std::this_thread::sleep_until(next);
    }
  }

  std::uint16_t port_;
  std::atomic<bool> gone_{false};
  std::vector<std::unique_ptr<RawClient>> senders_;
  std::jthread staying_;  ///< last: they end before what they use
  std::jthread connecting_;
};

/// How long four ranks take to be let in whom the way to the store takes 5 ms.
double start_seconds(std::uint16_t port) {
  const auto began = std::chrono::steady_clock::now();
  const auto on_its_way = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  std::vector<std::unique_ptr<RawClient>> clients(4);
  run_ranks(4, [&](int rank) {
    const Deadline deadline = soon();
    for (bool accepted = false; !accepted;) {
      if (deadline.passed()) throw std::runtime_error("it was pushed out again and again");
      auto& client = clients[static_cast<std::size_t>(rank)] = std::make_unique<RawClient>(port);
      on_its_way();
      if (client->send_frame(encode(RawClient::hello())) && client->receive_frame()) {
        on_its_way();
        accepted = client->send_frame(encode(RawClient::join(rank, 4))) && client->receives<Accepted>();
      }
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// A thousand connections that never join, on a thread: every second is silent, every fourth says half a frame, every
/// fourth random bytes. Who is closed connects again.
class Strangers {
 public:
  explicit Strangers(std::uint16_t port) : port_(port) {
    for (std::size_t i = 0; i < stranger_count; ++i) {
      clients_.push_back(connected(i));
    }
    thread_ = std::jthread([this] { keep_connected(clients_, gone_, [this](std::size_t i) { return connected(i); }); });
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  ~Strangers() { gone_ = true; }

  std::size_t connects() const { return connects_; }

 private:
  std::unique_ptr<RawClient> connected(std::size_t i) {
    auto client = std::make_unique<RawClient>(port_);
    ++connects_;
    std::vector<std::byte> bytes(i % 4 == 1 ? 20 : 64, std::byte{0});
    bytes[0] = std::byte{200};
    if (i % 4 == 3) {
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random_() & 0xffU);
      }
    }
    if (i % 2 == 1) {
      client->send(bytes);
    }
    return client;
  }

  std::uint16_t port_;
  std::atomic<bool> gone_{false};
  std::atomic<std::size_t> connects_{0};
  std::mt19937 random_{7};
  std::vector<std::unique_ptr<RawClient>> clients_;
  std::jthread thread_;  ///< last: it ends before what it uses
};

}  // namespace

TEST_CASE("a job forms while a thousand strangers do not complete the handshake, and the store stays small") {
  if (!raise_descriptors(3 * stranger_count)) {
    MESSAGE("not tried: this process may not open 3000 files (ulimit -Hn)");
    return;
  }
  constexpr int world_size = 8;
  const std::size_t descriptors = open_descriptors();
  {
    StoreProcess store(world_size, [](StoreOptions& options) { options.limits.pending_connections = most_strangers; });
    const std::size_t memory = resident_kibibytes();
    std::size_t most_connections = 0;
    {
      const Strangers strangers(store.port());
      run_ranks(world_size, [&](int rank) {
        ControlPlane control_plane(rank_options(rank, world_size, store.port()));
        CHECK(control_plane.membership().world_size == world_size);
        control_plane.store().barrier("all", soon()).wait();
        if (rank == 0) {
          most_connections = store.connections();
        }
        control_plane.store().barrier("seen", soon()).wait();
        control_plane.leave_blocking(soon());
      });
      CHECK(store.all_left(soon()));
      CHECK(strangers.connects() >= stranger_count);
      CHECK(most_connections <= most_strangers + 2 * world_size);
      CHECK(store.connections() <= most_strangers + world_size);
      CHECK(resident_kibibytes() < memory + std::size_t{128} * 1024);
    }
    CHECK(support::holds_before(soon(), [&] { return store.connections() == 0; }));
  }
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE(
    "many clients that send Hello and a flood of connections together slow the start of four ranks by a second at "
    "most") {
  if (!raise_descriptors(12000)) {
    MESSAGE("not tried: this process may not open 12000 files (ulimit -Hn)");
    return;
  }
  double best = 1e9;  // of three: the machine may be busy with other things
  for (int attempt = 0; attempt < 3 && best > 2; ++attempt) {
    const StoreProcess store(4);
    const HelloSenders greeters(store.port());
    best = std::min(best, start_seconds(store.port()));
  }
  MESSAGE("the start took " << best << " s");
  CHECK(best < (support::is_sanitized ? 10 : 2));
}
