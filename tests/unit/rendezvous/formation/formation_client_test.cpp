#include "dtrain/rendezvous/formation/formation_client.hpp"

#include "dtrain/rendezvous/server/store_server.hpp"
#include "support/name_service.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

using dtrain::async::LoopThread;
using dtrain::async::Task;
using dtrain::net::Listener;

/// The sentence of a worker that finds no store by its deadline.
std::string error_of_worker(std::string host, std::uint16_t port, std::chrono::milliseconds timeout,
                            std::chrono::milliseconds notice_after = std::chrono::seconds(10)) {
  FormationClient<> client({std::move(host), port}, timeout, {}, notice_after);
  return support::error_of([&] { static_cast<void>(client.announce_blocking({})); }).what();
}

/// The name service does not answer from the first connection on.
Task<void> close_once(Listener listener) {
  { const std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon()); }
  support::NameService::get().hold(true);
  static_cast<void>(co_await listener.accept(dtrain::Deadline::unbounded("the loop ends before its test")));
}

/// A store that bars its only worker ten times a second, and after 5 s says that the job has finished. Threads: the
/// loop's.
class BarringStore final : public WorkerConnections {
 public:
  explicit BarringStore(dtrain::async::EventLoop& loop)
      : loop_(loop),
        store_(loop, Listener::bind_loopback(loop, 0), ServerOptions{{}, rendezvous_test::usual_limits()}) {
    store_.set_workers(this);
  }
  BarringStore(const BarringStore&) = delete;
  BarringStore& operator=(const BarringStore&) = delete;
  ~BarringStore() { store_.set_workers(nullptr); }

  std::uint16_t port() const { return store_.local().port(); }

  Admission admit(std::span<const std::byte>, const std::shared_ptr<Session>& session) override {
    worker_ = std::make_unique<WorkerSession>(*this, 1, session);
    return {1, accepted_frame(rendezvous_test::usual_limits(), 1s)};
  }
  void start(SessionId, std::span<const std::byte> accepted) override {
    worker_->start(rendezvous_test::usual_limits(), 1s, accepted);
    barring_ = loop_.spawn(bar());
  }

 private:
  struct WorkerSession final : ServedSession<BarringStore> {
    using ServedSession<BarringStore>::ServedSession;
  };
  friend ServedSession<BarringStore>;

  static bool receive_frame(SessionId, std::span<const std::byte>) { return true; }
  void disconnected(SessionId, const std::string&) { worker_.reset(); }

  Task<void> bar() {
    for (int sent = 0; sent < 50 && worker_; ++sent) {
      static_cast<void>(worker_->session->send(encode(Barred{60000, "a worker of this host broke an attempt"})));
      co_await loop_.sleep_for(100ms);
    }
    if (worker_) static_cast<void>(worker_->session->send(encode(Finished{1, false, 0})));
  }

  dtrain::async::EventLoop& loop_;
  StoreServer store_;
  std::unique_ptr<WorkerSession> worker_;
  dtrain::async::TaskHandle barring_;
};

}  // namespace

TEST_CASE("a worker that waits for a silent program at its store's address logs it, and its error says it once") {
  LoopThread thread;
  support::CapturedStderr captured;
  const std::uint16_t port = start_serving(thread, &rendezvous_test::take_in_silence);
  const std::string error =
      error_of_worker("127.0.0.1", port, std::chrono::milliseconds(1500), std::chrono::milliseconds(500));
  const std::string joining = "joining the elastic job at 127.0.0.1:" + std::to_string(port) + ": ";
  CHECK(error ==
        "the job was lost: " + joining +
            "the deadline passed; what listens there took the connection and does not answer: it is another program, "
            "or a store of dtrain's whose process is stopped; check that MASTER_ADDR and MASTER_PORT are those of this "
            "job's store");
  CHECK(captured.text() ==
        "dtrain: " + joining + "still waiting; what listens there took the connection and has not answered yet\n");
}

TEST_CASE("a worker says what another program at its store's address has done, also if it could try no more") {
  LoopThread thread;
  const std::string web = "HTTP/1.1 400 Bad Request\r\n\r\n";
  const auto serve = [&](Listener listener) { return answer_all(std::move(listener), web); };
  CHECK_CONTAINS(error_of_worker("127.0.0.1", start_serving(thread, serve), std::chrono::seconds(2)),
                 "the deadline passed; what answers there is another program, and no store of dtrain's; check");
  support::NameService& names = support::NameService::get();
  names.reset();
  names.set_address("127.0.0.1");
  const std::string error = error_of_worker("store.test", start_serving(thread, &close_once), std::chrono::seconds(2));
  names.reset();
  CHECK_CONTAINS(error, "the deadline passed; what listens there closed the connection without an answer (");
  CHECK_FALSE(contains(error, "resolving host"));
}

TEST_CASE("a worker that is barred again and again waits for its timeout from the first bar on") {
  LoopThread thread;
  std::unique_ptr<BarringStore> store;
  const auto open = [&](dtrain::async::EventLoop& loop) -> Task<void> {
    store = std::make_unique<BarringStore>(loop);
    co_return;
  };
  thread.run_blocking(open, soon());
  std::string error;
  {
    support::CapturedStderr captured;
    error = error_of_worker("127.0.0.1", store->port(), 1s);
  }
  const auto close = [&](dtrain::async::EventLoop&) -> Task<void> {
    store.reset();
    co_return;
  };
  thread.run_blocking(close, soon());
  CHECK_CONTAINS(error, "the deadline passed while this worker had to wait, because a worker of this host broke");
}
