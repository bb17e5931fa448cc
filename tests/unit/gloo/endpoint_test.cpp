#include "dtrain/backend/gloo/endpoint.hpp"
#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("messages over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "support/gloo_mesh.hpp"
#include "support/thread_ranks.hpp"

using dtrain::backend::gloo::Endpoint;
using dtrain::backend::gloo::Mesh;
using dtrain::backend::message_passing::Routine;
using dtrain::backend::message_passing::TagClass;

namespace {

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    made[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed) * 7) & 0xff);
  return made;
}

/// Every rank sends each message to every other, a copy of it in flight for each peer, and checks what comes.
Routine every_rank_to_every_rank(Endpoint& endpoint, const std::vector<std::size_t>& lengths, bool& right) {
  for (const std::size_t length : lengths) {
    const std::vector<std::byte> own = pattern(length, endpoint.rank());
    std::vector<std::vector<std::byte>> received_bytes(static_cast<std::size_t>(endpoint.size()));
    std::vector<Endpoint::MessageHandle> sent;
    std::vector<Endpoint::MessageHandle> received;
    std::vector<int> peers;
    for (int distance = 1; distance < endpoint.size(); ++distance) {
      const int peer = (endpoint.rank() + distance) % endpoint.size();
      std::vector<std::byte>& memory = received_bytes[static_cast<std::size_t>(peer)];
      memory.resize(length);
      peers.push_back(peer);
      sent.push_back(endpoint.send(own, peer, TagClass::collective));
      received.push_back(endpoint.recv(memory, peer, TagClass::collective));
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      const std::size_t bytes = co_await endpoint.done(received[i]);
      right =
          right && bytes == length && received_bytes[static_cast<std::size_t>(peers[i])] == pattern(length, peers[i]);
      co_await endpoint.done(sent[i]);
    }
  }
}

/// As a routine does. Blocking.
std::size_t await(Endpoint& endpoint, Endpoint::MessageHandle handle) {
  const auto done = endpoint.done(handle);
  if (!done.await_ready()) throw std::logic_error("interrupted");
  return done.await_resume();
}

/// Of an Error that `work` throws.
template <class Work>
std::string thrown(Work work, Errc expected) {
  const Error error = support::error_of(work);
  CHECK(error.code() == make_error_code(expected));
  return error.what();
}

}  // namespace

TEST_CASE("messages of every length arrive whole, among 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    run_ranks<ConnectedMesh>(ranks, [&](ConnectedMesh& mesh, RankThread& self) {
      Endpoint endpoint(mesh.mesh);
      bool right = true;
      self.doing("exchanging messages");
      const std::vector<std::size_t> lengths{0, 1, 8, 16384, 16385, 100000, 3000000, 0, 5};
      Routine all = every_rank_to_every_rank(endpoint, lengths, right);
      all.resume();
      CHECK(all.done());
      all.check();
      CHECK(right);
    });
  }
}

TEST_CASE("a received message may be shorter than its memory") {
  run_ranks<ConnectedMesh>(2, [&](ConnectedMesh& mesh, RankThread& self) {
    Endpoint endpoint(mesh.mesh);
    const int peer = 1 - self.rank();
    const std::vector<std::byte> own = pattern(10, self.rank());
    std::vector<std::byte> memory(9000, std::byte{0xee});
    const auto received = endpoint.recv(memory, peer, TagClass::collective);
    const auto sent = endpoint.send(own, peer, TagClass::collective);
    CHECK(await(endpoint, received) == 10);
    CHECK(await(endpoint, sent) == 10);
    CHECK(std::memcmp(memory.data(), pattern(10, peer).data(), 10) == 0);
    CHECK(memory[10] == std::byte{0xee});
  });
}

TEST_CASE("the two tag classes do not wait for each other") {
  run_ranks<ConnectedMesh>(2, [&](ConnectedMesh& mesh, RankThread& self) {
    Endpoint endpoint(mesh.mesh);
    const std::vector<std::byte> first = pattern(20000, 1);
    const std::vector<std::byte> second = pattern(20000, 2);
    std::vector<std::byte> received_first(20000);
    std::vector<std::byte> received_second(20000);
    if (self.rank() == 0) {
      const auto a = endpoint.send(first, 1, TagClass::collective);
      const auto b = endpoint.send(second, 1, TagClass::direct);
      await(endpoint, a);
      await(endpoint, b);
    } else {
      const auto b = endpoint.recv(received_second, 0, TagClass::direct);
      await(endpoint, b);
      const auto a = endpoint.recv(received_first, 0, TagClass::collective);
      await(endpoint, a);
      CHECK(received_first == first);
      CHECK(received_second == second);
    }
  });
}

TEST_CASE("a short message that is longer than its memory is a disagreement") {
  run_ranks<ConnectedMesh>(2, [&](ConnectedMesh& mesh, RankThread& self) {
    Endpoint endpoint(mesh.mesh);
    if (self.rank() == 0) {
      const std::vector<std::byte> own = pattern(10, 0);
      const auto sent = endpoint.send(own, 1, TagClass::collective);
      await(endpoint, sent);
    } else {
      std::vector<std::byte> memory(9);
      const auto received = endpoint.recv(memory, 0, TagClass::collective);
      const std::string sentence = thrown([&] { await(endpoint, received); }, Errc::disagreement);
      CHECK(sentence == "rank 0 on host host-0 sends 10 bytes where 9 are received");
    }
  });
}

TEST_CASE("a wait is interrupted from another thread, and nobody touches its memory afterwards") {
  std::vector<std::byte> memory(1 << 20, std::byte{0xaa});
  run_ranks<ConnectedMesh>(2, [&](ConnectedMesh& mesh, RankThread& self) {
    Endpoint endpoint(mesh.mesh);
    if (self.rank() == 0) {
      const auto received = endpoint.recv(memory, 1, TagClass::collective);
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        endpoint.interrupt();
      });
      CHECK_FALSE(endpoint.done(received).await_ready());
      CHECK(endpoint.waits_for() == std::pair(1, true));
      CHECK_FALSE(endpoint.is_idle());
      other.join();
      endpoint.abandon();
      CHECK(endpoint.is_idle());
      mesh.store.set_blocking("abandoned", "", mesh.deadline);
      mesh.store.get_blocking("sent", mesh.deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } else {
      mesh.store.get_blocking("abandoned", mesh.deadline);
      const std::vector<std::byte> own = pattern(memory.size(), 1);
      endpoint.send(own, 0, TagClass::collective);
      mesh.store.set_blocking("sent", "", mesh.deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  CHECK(memory == std::vector<std::byte>(1 << 20, std::byte{0xaa}));
}

TEST_CASE("a peer that is gone ends a wait, and later messages to it, with an Error") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    auto mesh = std::make_unique<ConnectedMesh>(job, self.rank(), 2);
    auto endpoint = std::make_unique<Endpoint>(mesh->mesh);
    if (self.rank() == 1) {
      endpoint.reset();
      mesh.reset();
      return;
    }
    std::vector<std::byte> memory(100000);
    const auto later = [&] {
      const auto received = endpoint->recv(memory, 1, TagClass::collective);
      await(*endpoint, received);
    };
    const std::string sentence = thrown(later, Errc::closed);  // by the wait, or by recv where it is known already
    CHECK(sentence.find("receiving from rank 1 on host host-1, which has ended or left the channel (does every") == 0);
    CHECK(sentence.find("?): Gloo says: ") != std::string::npos);
    thrown(later, Errc::closed);
    thrown([&] { endpoint->send(memory, 1, TagClass::direct); }, Errc::closed);
  });
}

TEST_CASE(
    "a rank that does not say that it is connected is named, and nobody waits for it much longer than until then") {
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& self) {
    const auto context = support::channel_context(job, self.rank(), 3, "group", std::chrono::seconds(10));
    Mesh mesh(context, Deadline::after(std::chrono::seconds(60)));
    mesh.exchange_addresses(context, Deadline::after(std::chrono::seconds(60)));
    mesh.connect();
    if (self.rank() == 2) {
      CHECK(context.store.get_blocking("seen", Deadline::after(std::chrono::seconds(60))).empty());
      return;
    }
    const auto wait = [&] { mesh.await_all(context, Deadline::after(std::chrono::seconds(2))); };
    const std::string sentence = thrown(wait, Errc::timeout);
    if (self.rank() == 0) {
      CHECK(sentence.find(
                "connecting channel 'group' over Gloo: rank 2 on host host-2 is not connected with all others") == 0);
    } else {
      context.store.set_blocking("seen", "", Deadline::after(std::chrono::seconds(60)));  // the last to give up
    }
  });
}

#endif
