#pragma once
/// @file
/// A rank's half of what is said at the door of a store.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/rendezvous/door_codec.hpp"
#include "dtrain/rendezvous/link.hpp"
#include "dtrain/rendezvous/transcript.hpp"
#include "dtrain/rendezvous/version_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Where a store is, and how to get in.
struct Address {
  std::string host;
  std::uint16_t port = 0;
  std::uint16_t ports = 1;  ///< at which of so many ports from there on the store may be
  Role role = Role::rank;
  std::uint64_t generation = 0;
  std::optional<Secret> secret{};

  std::string text() const { return host + ":" + std::to_string(port); }
};

/// The store closed, or the deadline passed, before it had said whether it lets this rank in.
struct NoAnswer {
  std::string reason;
  bool timed_out = false;
  bool called = false;  ///< the Join or Resume was sent: the store may have acted on it
};

using KnockResult = std::variant<Accepted, Refused, Failure, NoAnswer>;

namespace detail {

inline Error no_store_error(const std::string& doing) {
  return Error(Errc::protocol,
               doing + ": what listens there is no store of dtrain's; check MASTER_ADDR and MASTER_PORT");
}

inline NoAnswer no_answer(const net::FrameResult& frame, bool called) {
  return {frame.reason, frame.status == net::FrameStatus::timed_out, called};
}

}  // namespace detail

/// @param call its proof is filled in here
/// @param doing begins the sentences: "joining the job at a:1 as rank 2"
/// @param deadline of hearing anything
/// @param settled of the answer to `call`: a store that took it may act on it
/// @throws Error (protocol) for what is no store; Error (refused) for one that does not know the secret, or asks for
/// none where this rank has one: it may be somebody else
inline async::Task<KnockResult> knock(Link& link, const Address& address, Knock call, std::string doing,
                                      Deadline deadline, Deadline settled) {
  Transcript transcript;
  const Frame hello =
      encode(Hello{version_text(), address.role, address.generation, random_bytes<16>(), address.secret.has_value()});
  transcript.add(hello);
  const net::IoResult greeted = co_await link.writer.write_frame(hello, deadline);
  if (!greeted.ok()) {
    co_return NoAnswer{greeted.reason(), greeted.status == net::IoStatus::timed_out};
  }
  const net::FrameResult first = co_await link.reader.read_frame(deadline);
  if (!first.ok()) {
    co_return detail::no_answer(first, false);
  }
  std::optional<DoorAnswer> answer = decode_door_answer(first.payload);
  if (answer && std::holds_alternative<Refused>(*answer)) {
    co_return std::get<Refused>(*std::move(answer));
  }
  const Challenge* challenge = answer ? std::get_if<Challenge>(&*answer) : nullptr;
  if (challenge == nullptr) {
    throw detail::no_store_error(doing);
  }
  if (address.secret && !challenge->asks_secret) {
    throw Error(Errc::refused, doing +
                                   ": this process has the job's secret, and the store asks for none: it is another "
                                   "job's, or nobody gave it the secret; check MASTER_ADDR and MASTER_PORT, and "
                                   "DTRAIN_SECRET on rank 0");
  }
  transcript.add(first.payload);
  Frame frame = std::visit([](auto& each) { return encode(each); }, call);
  if (address.secret) {
    const Proof proof = transcript.proof_for(Prover::rank, *address.secret, frame);
    std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
  }
  transcript.add(frame);
  const net::IoResult called = co_await link.writer.write_frame(frame, settled);
  if (!called.ok()) {
    co_return NoAnswer{called.reason(), called.status == net::IoStatus::timed_out, true};
  }
  const net::FrameResult second = co_await link.reader.read_frame(settled);
  if (!second.ok()) {
    co_return detail::no_answer(second, true);
  }
  answer = decode_door_answer(second.payload);
  if (!answer || std::holds_alternative<Challenge>(*answer)) {
    throw detail::no_store_error(doing);
  }
  if (Refused* refused = std::get_if<Refused>(&*answer)) {
    co_return std::move(*refused);
  }
  if (Failure* failure = std::get_if<Failure>(&*answer)) {
    co_return std::move(*failure);
  }
  if (address.secret && !transcript.is_proved(Prover::store, *address.secret, second.payload)) {
    throw Error(Errc::refused, doing +
                                   ": what listens there does not know the job's secret; check MASTER_ADDR and "
                                   "MASTER_PORT");
  }
  co_return std::get<Accepted>(*std::move(answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
