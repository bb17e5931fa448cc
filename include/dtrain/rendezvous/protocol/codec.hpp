#pragma once
/// @file
/// Codec: the store protocol's messages to frames and back; lengths are bounded, and left-over bytes are an error.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

using Frame = std::vector<std::byte>;

/// Frame to send: separate bytes, and bytes that it shares with other frames.
struct OutgoingFrame {
  DTRAIN_NOT_INLINED OutgoingFrame(Frame bytes,
                                   std::vector<net::SharedBytes> shared = {})  // NOLINT: most frames share nothing
      : own(std::move(bytes)), parts(std::move(shared)) {
    for (const net::SharedBytes& part : parts) {
      shared_bytes += part.bytes->size();
    }
  }

  DTRAIN_NOT_INLINED OutgoingFrame(const OutgoingFrame&) = default;
  DTRAIN_NOT_INLINED OutgoingFrame(OutgoingFrame&&) noexcept = default;
  DTRAIN_NOT_INLINED ~OutgoingFrame() = default;

  std::size_t size() const noexcept { return own.size() + shared_bytes; }

  Frame own;
  std::vector<net::SharedBytes> parts;
  std::size_t shared_bytes = 0;
};

/// @name Fields of each message in their order on the wire
/// @{
inline void fields(Serializer& of, Welcome& message) {
  Membership& membership = message.membership;
  of.number(membership.rank, 0, max_world_size);
  of.number(membership.world_size, 1, max_world_size);
  of.number(membership.local_rank, 0, max_world_size);
  of.number(membership.local_world_size, 1, max_world_size);
  of.number(membership.node_rank, 0, max_world_size);
  of.number(membership.node_count, 1, max_world_size);
  of.text(membership.host, max_name_bytes);
  of.text(membership.job, max_name_bytes);
  of.number(membership.other_host_rank, -1, max_world_size);
  of.text(membership.other_host, max_name_bytes);
}

inline void fields(Serializer& of, Cause& cause) {
  of.choice(cause.kind, CauseKind::lost, CauseKind::resized);
  of.number(cause.rank, -1, std::numeric_limits<int>::max());
  of.text(cause.host, max_name_bytes);
  of.text(cause.text, max_sentence_bytes);
}

inline void fields(Serializer& of, Failure& message) {
  fields(of, message.cause);
}
inline void fields(Serializer& of, FailureReport& message) {
  fields(of, message.cause);
}
inline void fields(Serializer&, Leave&) {}
inline void fields(Serializer&, Left&) {}

/// Ranges of ranks below max_world_size, each after the end of the one before.
inline void fields(Serializer& of, RankSet& set) {
  int behind = 0;
  of.list(set.ranges, 0, max_barrier_ranges, [&](RankSet::RankRange& range) {
    constexpr int most = max_world_size - 1;
    of.number(range.first, behind, most);
    of.number(range.step, 1, most);
    of.number(range.more, 0, (most - range.first) / std::max(range.step, 1));
    behind = range.last() + 1;
  });
}

inline void fields(Serializer& of, Request& message) {
  constexpr auto any = std::numeric_limits<std::uint8_t>::max();  // the switch bounds the kind
  const auto value = [&of](std::string& bytes) { of.raw_text(bytes, max_value_bytes); };
  of.number(message.id);
  of.choice(message.kind, RequestKind{}, RequestKind{any});
  of.list(message.keys, 1, takes_many(message.kind) ? max_keys_per_wait : 1,
          [&of](std::string& key) { of.raw_text(key, max_key_bytes); });
  of.text(message.purpose, max_name_bytes);
  switch (message.kind) {  // no default: the compiler names a kind that is missing here
    case RequestKind::compare_set: of.maybe(message.expected, value); return value(message.value);
    case RequestKind::set:
    case RequestKind::append: return value(message.value);
    case RequestKind::add:
    case RequestKind::take: return of.number(message.number);
    case RequestKind::barrier: return fields(of, message.members);
    case RequestKind::set_many:
      message.values.resize(message.keys.size());
      std::for_each(message.values.begin(), message.values.end(), value);
      return;
    case RequestKind::get:
    case RequestKind::try_get:
    case RequestKind::wait:
    case RequestKind::erase:
    case RequestKind::get_many: return;  // keys alone
  }
  of.fail("is a request of an unknown kind");
}

inline void fields(Serializer& of, RankStatus::Channel& channel) {
  of.text(channel.name, max_name_bytes);
  of.text(channel.call, RankStatus::max_call_bytes);
  of.number(channel.sequence);
  of.number(channel.called);
  of.number(channel.unchanged_ms);
  of.flag(channel.is_in_operation);
}

inline void fields(Serializer& of, ComputingWindow& window) {
  for (std::uint64_t* const each : {&window.first_step, &window.last_step, &window.steps, &window.lower_quartile,
                                    &window.median, &window.upper_quartile, &window.backward, &window.outside})
    of.number(*each);
  of.number(window.ranks);
  of.number(window.core_wait);
  of.number(window.passes);
}

inline void fields(Serializer& of, RankStatus& status) {
  of.choice(status.phase, RankPhase::outside, RankPhase::unwinding);
  of.number(status.process);
  of.number(status.step);
  of.number(status.ready);
  of.number(status.parameters);
  of.text(status.missing, max_name_bytes);
  of.text(status.thread, max_name_bytes);
  of.number(status.unchanged_ms);
  of.list(status.channels, 0, RankStatus::most_channels, [&of](RankStatus::Channel& each) { fields(of, each); });
  of.number(status.values.steps);
  of.number(status.values.digest);
  of.number(status.values.ranks);
  of.number(status.finding.number);
  of.number(status.finding.step);
  of.flag(status.finding.is_sum);
  of.text(status.finding.text, RankStatus::max_finding_bytes);
  fields(of, status.computing);
}

/// @param of a Serializer, or a SharingWriter
template <class Fields, class Value>
void fields(Fields& of, BasicResponse<Value>& message) {
  of.number(message.id);
  of.choice(message.status, Status::ok, Status::failed);
  of.raw_text(message.text, max_value_bytes);
  of.number(message.number);
  of.list(message.values, 0, max_keys_per_wait, [&of](Value& value) { of.raw_text(value, max_value_bytes); });
}

inline void fields(Serializer& of, Cancel& message) {
  of.number(message.id);
}
/// @}

/// Encodes a message into `writer`, which owns the returned bytes and is cleared first.
template <class Message, std::derived_from<Serializer> Writer>
std::span<const std::byte> encode(Message& message, Writer& writer) {
  writer.clear();
  MessageKind kind = Message::message_kind;
  writer.choice(kind, kind, kind);
  fields(writer, message);
  return writer.view();
}

/// The frame of a message. @pre keys and values are within their bounds; longer ones are cut
template <class Message>
Frame encode(Message&& message) {
  Serializer writer;
  if constexpr (std::is_const_v<std::remove_reference_t<Message>>) {
    std::remove_cvref_t<Message> copy = message;  // fields() also serves a reader, which changes the message
    static_cast<void>(encode(copy, writer));
  } else {
    static_cast<void>(encode(message, writer));
  }
  return writer.take();
}

namespace detail {

/// A writer that does not copy values of 4 KiB or more: they become shared parts.
class SharingWriter : public Serializer {
 public:
  /// @pre the value has at most `longest` bytes
  void raw_text(const SharedValue& value, std::size_t longest) {
    constexpr std::size_t shared_from = std::size_t{4} << 10;  // copying fewer bytes is faster than sharing them
    if (value == nullptr || value->size() < shared_from) {
      std::string text = value == nullptr ? std::string() : *value;
      Serializer::raw_text(text, longest);
    } else {
      auto size = static_cast<std::uint32_t>(value->size());
      number(size);
      parts_.push_back({view().size(), value});
    }
  }
  std::vector<net::SharedBytes> take_parts() { return std::exchange(parts_, {}); }

 private:
  std::vector<net::SharedBytes> parts_;
};

template <class... Messages>
DTRAIN_NOT_INLINED std::optional<std::variant<Messages...>> decode(std::span<const std::byte> frame,
                                                                   std::type_identity<std::variant<Messages...>>) {
  Serializer reader(frame);
  MessageKind kind{};
  std::optional<std::variant<Messages...>> message;
  const auto read = [&]<class Message>(std::type_identity<Message>) {
    if (reader.ok() && kind == Message::message_kind) {
      fields(reader, std::get<Message>(message.emplace(std::in_place_type<Message>)));
    }
  };
  reader.choice(kind, MessageKind::hello, MessageKind::status);
  (read(std::type_identity<Messages>()), ...);
  if (!reader.finished()) {
    message.reset();
  }
  return message;
}

}  // namespace detail

/// The frame of a Response, sharing its long values instead of copying them.
inline OutgoingFrame encode(ValueResponse message) {
  detail::SharingWriter writer;
  static_cast<void>(encode(message, writer));
  return {writer.take(), writer.take_parts()};
}

inline Frame encode(ToRank message) {
  return std::visit([](auto& each) { return encode(std::move(each)); }, message);
}

/// One of the messages of a variant (ToRank); nullopt if the frame is another, or does not follow the protocol.
template <class AnyMessage>
std::optional<AnyMessage> decode(std::span<const std::byte> frame) {
  return detail::decode(frame, std::type_identity<AnyMessage>());
}

/// A heartbeat is its kind alone.
inline constexpr std::array<std::byte, 1> heartbeat_frame{static_cast<std::byte>(MessageKind::heartbeat)};
inline bool is_heartbeat(std::span<const std::byte> frame) noexcept {
  return frame.size() == heartbeat_frame.size() && frame.front() == heartbeat_frame.front();
}

/// Messages that a store may send in the handshake.
using HandshakeReply = std::variant<Challenge, Accepted, Refused, Failure>;

/// @name Fields of each message in their order on the wire. A proof comes last (secret.hpp).
/// @{

/// Fields after the kind, magic, protocol and version of a Hello.
inline void fields(Serializer& of, Hello& message) {
  of.choice(message.role, ClientRole::rank, ClientRole::worker);
  of.number(message.attempt);
  of.bytes(message.nonce);
  of.flag(message.has_secret);
}

inline void fields(Serializer& of, Challenge& message) {
  of.bytes(message.nonce);
  of.flag(message.asks_secret);
}

inline void fields(Serializer& of, Origin& origin) {
  of.flag(origin.is_exact_job);
  of.flag(origin.one_starter);
  of.number(origin.process_space);
  of.number(origin.starter);
  of.number(origin.starter_began);
  of.text(origin.starter_name, max_name_bytes);
  of.text(origin.program, max_name_bytes);
  of.text(origin.build, max_name_bytes);
}

inline void fields(Serializer& of, Join& message) {
  constexpr int most = std::numeric_limits<int>::max();
  of.number(message.info.rank);  // a number out of range is rejected with a sentence
  of.number(message.world_size);
  of.text(message.info.host_id, max_name_bytes);
  of.text(message.info.host, max_name_bytes);
  of.number(message.info.local_rank, most);
  of.number(message.info.local_world_size, most);
  of.number(message.info.node_rank, most);
  of.number(message.info.node_count, most);
  of.raw_text(message.info.settings, max_settings_bytes);
  of.text(message.job, max_name_bytes);
  fields(of, message.origin);
  of.flag(message.opens_store);
  of.number(message.process);
  of.number(message.join_timeout_ms);
  of.bytes(message.proof);
}

inline void fields(Serializer& of, Accepted& message) {
  of.number(message.heartbeat_ms);
  of.number(message.liveness_ms);
  of.bytes(message.proof);
}

inline void fields(Serializer& of, Refused& message) {
  of.text(message.sentence, max_sentence_bytes);
  of.flag(message.other_job);
}
/// @}

namespace detail {

/// The first fields of a Hello, which every version keeps.
inline void version_fields(Serializer& of, std::uint16_t& protocol, std::string& version) {
  MessageKind kind = MessageKind::hello;
  std::uint32_t magic = protocol_magic;
  of.choice(kind, MessageKind::hello, MessageKind::hello);
  of.number(magic, protocol_magic, protocol_magic);
  of.number(protocol);
  of.text(version, max_name_bytes);
}

}  // namespace detail

/// @param protocol another version only in tests
inline Frame encode(Hello message, std::uint16_t protocol = protocol_version) {
  Serializer writer;
  detail::version_fields(writer, protocol, message.version);
  fields(writer, message);
  return writer.take();
}

/// A Hello, or the rejection of another version's Hello; nullopt for other bytes, whose sender could not read a
/// rejection.
/// @param version the store's version of dtrain
inline std::optional<std::variant<Hello, Refused>> decode_hello(std::span<const std::byte> frame,
                                                                const std::string& version) {
  Serializer reader(frame);
  std::uint16_t protocol = 0;
  Hello hello;
  detail::version_fields(reader, protocol, hello.version);
  if (!reader.ok()) {
    return std::nullopt;
  }
  if (protocol != protocol_version || hello.version != version) {
    return Refused{format_text(
        "this process runs dtrain {} (protocol {}), the job dtrain {} (protocol {}); run one build on all ranks",
        {hello.version, protocol, version, protocol_version})};
  }
  fields(reader, hello);
  if (!reader.finished()) {
    return std::nullopt;
  }
  return hello;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
