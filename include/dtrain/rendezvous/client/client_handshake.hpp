#pragma once
/// @file
/// Client half of the handshake with a store; StoreServer has the other half.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/handshake_codec.hpp"
#include "dtrain/rendezvous/protocol/transcript.hpp"
#include "dtrain/rendezvous/session/framed_connection.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Address of a store, and the parameters of a handshake with it.
struct StoreAddress {
  std::string host;
  std::uint16_t port = 0;
  std::uint16_t ports = 1;  ///< number of ports, from `port` on, at one of which the store listens
  ClientRole role = ClientRole::rank;
  std::uint64_t attempt = 0;
  std::optional<Secret> secret{};

  std::string text() const { return format_text("{}:{}", {host, port}); }
};

/// The connection closed, or the deadline passed, before the store accepted or refused this rank.
struct HandshakeError {
  std::string reason;
  bool timed_out = false;
  bool request_sent = false;  ///< the Join or Resume was sent: the store may have acted on it
};

using HandshakeResult = std::variant<Accepted, Refused, Failure, HandshakeError>;

namespace detail {

inline Error no_store_error(const std::string& doing) {
  return Error(Errc::protocol,
               doing + ": what listens there is no store of dtrain's; check MASTER_ADDR and MASTER_PORT");
}

inline HandshakeError handshake_error(const net::FrameResult& frame, bool request_sent) {
  return {frame.reason, frame.status == net::FrameStatus::timed_out, request_sent};
}

}  // namespace detail

/// Sends a Hello, receives the Challenge, sends `request` and receives the reply.
/// @param request the function fills in its proof
/// @param doing begins the error sentences: "joining the job at a:1 as rank 2"
/// @param deadline of the first reply
/// @param reply_deadline of the reply to `request`, on which a store that received it may already act
/// @throws Error (protocol) if the peer is no store of dtrain; Error (refused) if the store does not know the secret,
/// or asks for none though this rank has one: it may be another job's store
inline async::Task<HandshakeResult> handshake(FramedConnection& connection, const StoreAddress& address,
                                              HandshakeRequest request, std::string doing, Deadline deadline,
                                              Deadline reply_deadline) {
  Transcript transcript;
  const Frame hello =
      encode(Hello{version_text, address.role, address.attempt, random_bytes<16>(), address.secret.has_value()});
  transcript.add(hello);
  const net::IoResult hello_sent = co_await connection.writer.write_frame(hello, deadline);
  if (!hello_sent.ok()) {
    co_return HandshakeError{hello_sent.reason(), hello_sent.status == net::IoStatus::timed_out};
  }
  const net::FrameResult first = co_await connection.reader.read_frame(deadline);
  if (!first.ok()) {
    co_return detail::handshake_error(first, false);
  }
  std::optional<HandshakeReply> reply = decode<HandshakeReply>(first.payload);
  if (reply && std::holds_alternative<Refused>(*reply)) {
    co_return std::get<Refused>(*std::move(reply));
  }
  const Challenge* challenge = reply ? std::get_if<Challenge>(&*reply) : nullptr;
  if (challenge == nullptr) {
    throw detail::no_store_error(doing);
  }
  if (address.secret && !challenge->asks_secret) {
    throw_error(Errc::refused,
                "{}: this process has the job's secret, and the store asks for none: it is another job's, or nobody "
                "gave it the secret; check MASTER_ADDR and MASTER_PORT, and DTRAIN_SECRET on rank 0",
                {doing});
  }
  transcript.add(first.payload);
  Frame frame = std::visit([](auto& each) { return encode(each); }, request);
  if (address.secret) {
    const Proof proof = transcript.proof_for(ProofSide::rank, *address.secret, frame);
    std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
  }
  transcript.add(frame);
  const net::IoResult sent = co_await connection.writer.write_frame(frame, reply_deadline);
  if (!sent.ok()) {
    co_return HandshakeError{sent.reason(), sent.status == net::IoStatus::timed_out, true};
  }
  const net::FrameResult second = co_await connection.reader.read_frame(reply_deadline);
  if (!second.ok()) {
    co_return detail::handshake_error(second, true);
  }
  reply = decode<HandshakeReply>(second.payload);
  if (!reply || std::holds_alternative<Challenge>(*reply)) {
    throw detail::no_store_error(doing);
  }
  if (Refused* refused = std::get_if<Refused>(&*reply)) {
    co_return std::move(*refused);
  }
  if (Failure* failure = std::get_if<Failure>(&*reply)) {
    co_return std::move(*failure);
  }
  if (address.secret && !transcript.is_proved(ProofSide::store, *address.secret, second.payload)) {
    throw_error(Errc::refused,
                "{}: what listens there does not know the job's secret; check MASTER_ADDR and MASTER_PORT", {doing});
  }
  co_return std::get<Accepted>(*std::move(reply));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
