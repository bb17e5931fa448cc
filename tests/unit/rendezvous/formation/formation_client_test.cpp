#include "dtrain/rendezvous/formation/formation_client.hpp"

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
