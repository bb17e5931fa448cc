// ctest: TIMEOUT 120
// Stores whose process may open few files.

#include <fcntl.h>

#include "dtrain/core/process/open_files.hpp"
#include "unit/rendezvous/prelude.hpp"

using support::with_open_files;

namespace {

/// So many ranks of a job join its store, at once; what keeps the first from it, or "all have joined".
std::string join(int world_size, int ranks) {
  const StoreProcess store(world_size);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int rank = 0; rank < ranks; ++rank) {
    clients.push_back(std::make_unique<RawClient>(store.port()));
    if (!clients.back()->enter(rank, world_size)) return "rank " + std::to_string(rank) + " cannot connect";
  }
  for (const auto& client : clients) {
    const auto answer = client->receive();
    if (!answer) return "no answer";
    if (const Failure* failure = std::get_if<Failure>(&*answer)) return failure->cause.sentence();
    if (!std::holds_alternative<Accepted>(*answer)) return "another answer";
  }
  return "all have joined";
}

/// "open files for that, but may open ", with the numbers around it as they are.
bool says(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t place = text.find(begin);
  return place != std::string::npos && text.find(end, place) != std::string::npos;
}

}  // namespace

TEST_CASE("a store has as many files open as the hard limit allows") {
  CHECK(with_open_files(64, 400, [] { return join(70, 70); }) == "all have joined");
}

TEST_CASE("a store that may not open enough files for its job says so at once, with the number that it needs") {
  const std::string text = with_open_files(64, 64, [] {
    const auto began = std::chrono::steady_clock::now();
    std::string said = join(70, 4);
    const bool at_once = std::chrono::steady_clock::now() - began < std::chrono::seconds(30);
    return (at_once ? "at once: " : "late: ") + said;
  });
  CAPTURE(text);
  CHECK(says(text, "at once: the job failed: the launcher on host l serves the store of 70 ranks and needs ",
             " open files for that, but may open 64; raise the hard limit (ulimit -Hn "));
}

TEST_CASE("rank 0 of a job that is too large for its open files says so at once, and does not wait for the others") {
  const std::string text = with_open_files(64, 64, [] {
    ControlPlaneOptions options = rank_options(0, 70, 0);
    options.hosts_store = true;
    options.timeout = std::chrono::seconds(600);
    const ControlPlane control_plane(options);
    return std::string("it has joined");
  });
  CAPTURE(text);
  CHECK(says(text, "threw the job failed: rank 0 on host ", " serves the store of 70 ranks and needs "));
}

TEST_CASE("a store that runs out of files says so once, at once, and lets in who waits when there are some again") {
  const std::string text = with_open_files(40, 40, [] {
    const StoreProcess store(2);
    RawClient first(store.port());
    if (!first.enter(0, 2) || !first.receives<Accepted>()) return std::string("rank 0 was not let in");
    std::vector<int> files;
    const int second = ::socket(AF_INET, SOCK_STREAM, 0);
    for (int file = 0; (file = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
      files.push_back(file);
    }
    if (!RawClient::connects(second, store.port())) return std::string("no connection");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it tries every 20 ms
    for (const int file : files) {
      ::close(file);
    }
    RawClient other(store.port());
    return std::string(other.enter(1, 2) && other.receives<Accepted>() ? "let in" : "not let in");
  });
  CAPTURE(text);
  const std::string warning = "dtrain: accepting a connection at 127.0.0.1:";
  CHECK(text.starts_with(warning));
  CHECK(
      says(text, warning,
           ": Too many open files; clients that connect wait; this process may have 40 files open: raise that (ulimit "
           "-n), or close some\nlet in"));
  CHECK(text.find(warning, 1) == std::string::npos);
}

TEST_CASE("the limit of open files is raised once, and what is started may have the former one") {
  const std::string text = with_open_files(100, 200, [] {
    std::string seen = dtrain::open_files_for_children() ? "raised " : "";
    dtrain::raise_open_files();
    dtrain::raise_open_files();
    const std::optional<rlimit> children = dtrain::open_files_for_children();
    seen += std::to_string(*dtrain::open_files_limit()) + " ";
    seen += children ? std::to_string(children->rlim_cur) + " " + std::to_string(children->rlim_max) : "none";
    const rlimit own{150, 200};
    static_cast<void>(::setrlimit(RLIMIT_NOFILE, &own));  // the program has its own opinion
    return seen + (dtrain::open_files_for_children() ? " raised" : " as it is");
  });
  CHECK(text == "200 100 200 as it is");
  CHECK(with_open_files(90, 90, [] {
          dtrain::raise_open_files();
          return std::string(dtrain::open_files_for_children() ? "raised" : "as it was");
        }) == "as it was");
}
