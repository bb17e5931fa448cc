// How long a job takes to form: many ranks over TCP on the loopback, each proving the job's secret; the store in one
// process, the ranks in others. Beside it PyTorch's TCPStore, real ranks from their launcher's start on, and both with
// a thousand strangers that do not complete the handshake.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "bench/goal.hpp"
#include "bench/options.hpp"
#include "bench/rendezvous/formation.hpp"
#include "bench/rendezvous/launched_job.hpp"
#include "bench/rendezvous/tcp_store_peer.hpp"
#include "bench/rendezvous/unauthenticated_clients.hpp"
#include "bench/result_rows.hpp"

namespace {

using bench::median;
using bench::print_goal;
using bench::Row;
using bench::text_of;

constexpr const char* bench_name = "rendezvous_bench";
constexpr const char* usage_line = "[--ranks=4,64,1000,10000] [--samples=N] [--json=FILE]";
constexpr int stranger_count = 1000;
constexpr std::chrono::milliseconds strangers_moment{100};
constexpr int ranks_among_strangers = 8;
constexpr int most_peer_clients = 4000;  ///< it has a thread for each, and more are no fair comparison

class RendezvousBench {
 public:
  explicit RendezvousBench(bench::Options options)
      : options_(std::move(options)), open_files_(bench::raise_open_files()) {}

  void run() {
    if (!peer_.present()) {
      std::printf("pytorch  missing: no torch in %s (set DTRAIN_PEER_PYTHON)\n", peer_.looked_in().c_str());
    }
    for (const int ranks : options_.ranks) {
      measure_formation(ranks);
    }
    measure_launched_job(4);
    measure_among_strangers();
    rows_.write_json(options_.json);
  }

 private:
  int samples(int ranks) const {
    return options_.samples > 0 ? options_.samples : ranks > 4000 ? 5 : ranks > 400 ? 9 : 25;
  }

  /// Shared out so that no process needs more descriptors than it may have.
  int processes(int ranks) const {
    const auto room = static_cast<int>(std::min<std::uint64_t>(open_files_, 1U << 30)) - 64;
    return std::min(ranks, std::max(4, (ranks + room - 1) / std::max(room, 1)));
  }

  void measure_formation(int ranks) {
    if (static_cast<std::uint64_t>(ranks) + 64 > open_files_) {
      std::printf("dtrain   %d ranks: left out, because the store may open %llu files only (ulimit -Hn)\n", ranks,
                  static_cast<unsigned long long>(open_files_));
      return;
    }
    std::vector<double> seconds, formed, bytes;
    for (int i = 0; i < samples(ranks); ++i) {
      const auto secret = bench::rendezvous::Secret::drawn();
      const bench::StoreProcess store(ranks, secret);
      const bench::FormationTimes times = bench::time_formation(store, secret, ranks, processes(ranks));
      seconds.push_back(times.seconds);
      formed.push_back(times.formed_seconds);
      bytes.push_back(times.store_bytes / ranks);
    }
    Row row{bench_name, "dtrain", "join + add + wait", ranks, 1, 0, median(seconds), seconds.size()};
    rows_.add(row.with("formed_seconds", median(formed))
                  .with("store_bytes_per_rank", median(bytes))
                  .with("processes", processes(ranks)));
    medians_[ranks] = row.median_seconds;
    if (ranks == 1000) {
      print_goal("1,000 ranks in less than 1 s", row.median_seconds < 1, text_of(row.median_seconds, " s"));
    } else if (ranks == 10000 && medians_.contains(1000)) {
      const double times = row.median_seconds / medians_[1000];
      print_goal("10,000 ranks in at most 15 times the time of 1,000", times <= 15, text_of(times, " times"));
    }
    measure_peer(ranks);
  }

  void measure_peer(int ranks) {
    if (!peer_.present() || ranks > most_peer_clients) {
      return;
    }
    const auto times = peer_.time(ranks, processes(ranks), samples(ranks));
    Row row{bench_name, "pytorch", "TCPStore: add + wait", ranks, 1, 0, median(times.seconds), times.seconds.size()};
    rows_.add(row.with("ratio", row.median_seconds / medians_.at(ranks)).with("version", times.version));
  }

  void measure_launched_job(int ranks) {
    std::vector<double> seconds;
    for (int i = 0; i < samples(ranks); ++i) {
      seconds.push_back(bench::time_launched_job(ranks));
    }
    rows_.add(Row{bench_name, "dtrain", "launcher to groups", ranks, 1, 0, median(seconds), seconds.size()});
    print_goal("4 real ranks from spawn to group in less than 100 ms", median(seconds) < 0.1,
               text_of(median(seconds) * 1e3, " ms"));
  }

  /// Each sample with strangers has one without beside it, because a machine's speed changes.
  void measure_among_strangers() {
    if (open_files_ < 3 * stranger_count) {
      std::printf("dtrain   strangers: left out, because a process may open %llu files only (ulimit -Hn)\n",
                  static_cast<unsigned long long>(open_files_));
      return;
    }
    std::vector<double> alone, among, launched_alone, launched_among;
    const int ranks = ranks_among_strangers;
    for (int i = 0; i < samples(ranks); ++i) {
      alone.push_back(time_with_strangers(0));
      among.push_back(time_with_strangers(stranger_count));
      launched_alone.push_back(time_launched_with_strangers(0));
      launched_among.push_back(time_launched_with_strangers(stranger_count));
    }
    add_among("join + add + wait", alone, among);
    add_among("launcher to groups", launched_alone, launched_among);
  }

  static double time_with_strangers(int count) {
    const auto secret = bench::rendezvous::Secret::drawn();
    const bench::StoreProcess store(ranks_among_strangers, secret);
    const bench::UnauthenticatedClients strangers(store.port(), count, strangers_moment);
    strangers.await_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // they stay, and who was closed comes again
    return bench::time_formation(store, secret, ranks_among_strangers, 4).seconds;
  }

  /// The strangers connect from before the store is there, and go on until all groups are.
  static double time_launched_with_strangers(int count) {
    std::uint16_t port = 0;
    {
      dtrain::async::EventLoop loop;
      port = dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0)).port();
    }
    const bench::UnauthenticatedClients strangers(port, count, strangers_moment);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return bench::time_launched_job(ranks_among_strangers, port);
  }

  void add_among(const std::string& what, const std::vector<double>& alone, const std::vector<double>& among) {
    const int ranks = ranks_among_strangers;
    const double times = median(among) / median(alone);
    rows_.add(Row{bench_name, "dtrain", what, ranks, 1, 0, median(alone), alone.size()});
    Row row{bench_name, "dtrain", what + ", strangers", ranks, 1, 0, median(among), among.size()};
    rows_.add(row.with("strangers", stranger_count).with("times_normal", times));
    print_goal("with 1,000 strangers at most 1.5 times the normal time", times <= 1.5, text_of(times, " times"));
  }

  bench::Options options_;
  std::uint64_t open_files_;
  bench::TcpStorePeer peer_;
  bench::ResultRows rows_;
  std::map<int, double> medians_;
};

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return bench::run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    RendezvousBench(bench::Options::parse(argc, argv, {4, 64, 1000, 10000})).run();
  });
}
