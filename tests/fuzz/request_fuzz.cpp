// Frames of a session from anywhere: what is read is within the bounds, and has one form only: written again, it reads
// as the same, and keys and values are written again as the bytes that they were.

#include "fuzz/fuzz.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/rendezvous/protocol/codec.hpp"

using namespace dtrain::rendezvous;

namespace {

std::string bytes_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

void require_bounded(const Request& request) {
  fuzz::require(!request.keys.empty(), "a request has a key");
  fuzz::require(takes_many(request.kind) || request.keys.size() == 1, "most operations are about one key");
  fuzz::require(request.keys.size() <= max_keys_per_wait, "the keys are bounded");
  for (const std::string& key : request.keys) {
    fuzz::require(key.size() <= max_key_bytes, "a key is bounded");
  }
  fuzz::require(request.kind != RequestKind::set_many || request.values.size() == request.keys.size(),
                "every key has its value");
  fuzz::require(request.value.size() <= max_value_bytes, "a value is bounded");
}
void require_bounded(const Response& response) {
  fuzz::require(response.values.size() <= max_keys_per_wait, "the values are bounded");
}
void require_bounded(const dtrain::Cause& cause) {
  for (const char byte : cause.sentence()) {
    fuzz::require(static_cast<unsigned char>(byte) >= ' ', "a sentence has no control bytes");
  }
  fuzz::require(cause.text.size() <= max_sentence_bytes, "a sentence is bounded");
}
void require_bounded(const FailureReport& report) {
  require_bounded(report.cause);
}
void require_bounded(const Failure& failure) {
  require_bounded(failure.cause);
}
void require_bounded(const RankStatus& status) {
  fuzz::require(status.channels.size() <= RankStatus::most_channels, "the channels are bounded");
  for (const RankStatus::Channel& each : status.channels) {
    fuzz::require(each.call.size() <= RankStatus::max_call_bytes, "an operation's text is bounded");
    for (const char byte : each.call)
      fuzz::require(static_cast<unsigned char>(byte) >= ' ', "an operation's text has no control bytes");
  }
}
template <class Other>
void require_bounded(const Other& /*message*/) {}

/// Messages without texts for people are written as they were read; the others reach that form in one step.
template <class Message, class Decode>
void require_one_form(const Message& message, std::span<const std::byte> frame, Decode decode) {
  std::visit([](const auto& each) { require_bounded(each); }, message);
  const auto write = [](const auto& each) { return encode(each); };
  const Frame written = std::visit(write, message);
  const Request* const request = std::get_if<Request>(&message);
  if ((request != nullptr && request->purpose.empty()) || std::holds_alternative<Response>(message)) {
    fuzz::require(std::equal(written.begin(), written.end(), frame.begin(), frame.end()),
                  "a request or an answer is written as it was read");
  }
  const auto again = decode(written);
  fuzz::require(again.has_value() && again->index() == message.index(), "what is written can be read");
  if (request != nullptr) {  // its purpose is a text for people
    const Request& read = std::get<Request>(*again);
    fuzz::require(read.keys == request->keys && read.values == request->values && read.value == request->value,
                  "keys and values are written as they were read");
  }
  fuzz::require(std::visit(write, *again) == written, "what was written once is written the same again");
}

/// The same alternatives in one type, for both directions.
template <class Decode>
void try_direction(std::span<const std::byte> frame, Decode decode) {
  const auto message = decode(frame);
  if (message) {
    using Any = std::variant<Request, Response, Cancel, FailureReport, Leave, RankStatus, Welcome, Failure, Left>;
    const auto widen = [](const auto& each) { return Any(each); };
    const auto decode_any = [&](std::span<const std::byte> bytes) -> std::optional<Any> {
      const auto found = decode(bytes);
      return found ? std::optional<Any>(std::visit(widen, *found)) : std::nullopt;
    };
    require_one_form(std::visit(widen, *message), frame, decode_any);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> frame = std::as_bytes(std::span(data, size));
  try_direction(frame, [](std::span<const std::byte> bytes) { return decode<FromRank>(bytes); });
  try_direction(frame, [](std::span<const std::byte> bytes) { return decode<ToRank>(bytes); });
  return 0;
}

std::vector<std::string> fuzz::seeds() {
  std::vector<std::string> all;
  for (auto each = static_cast<int>(RequestKind::set); each <= static_cast<int>(RequestKind::take); ++each) {
    Request request;
    request.id = 7;
    request.kind = static_cast<RequestKind>(each);
    request.keys = {"key"};
    request.value = "value";
    request.number = -1;
    request.expected = "old";
    request.values = {"value"};
    all.push_back(bytes_of(encode(request)));
    if (takes_many(request.kind)) {
      request.keys.emplace_back("other");
      request.values.emplace_back();
      all.push_back(bytes_of(encode(request)));
    }
  }
  Response response{7, Status::ok, "text", 5};
  all.push_back(bytes_of(encode(response)));
  response.values = {"a", "b"};
  all.push_back(bytes_of(encode(response)));
  all.push_back(bytes_of(encode(Cancel{7})));
  all.push_back(bytes_of(encode(FailureReport{{dtrain::CauseKind::exception, 1, "host", "the disk is full\n"}})));
  all.push_back(bytes_of(encode(Failure{{dtrain::CauseKind::lost, 1, "host", "it closed"}})));
  all.push_back(bytes_of(encode(Leave{})));
  RankStatus status;
  status.channels = {{"ddp-0", "barrier", 7, 7, 0, true}};
  all.push_back(bytes_of(encode(status)));
  all.push_back(bytes_of(encode(Left{})));
  Welcome welcome;
  welcome.membership.host = welcome.membership.other_host = "host";
  welcome.membership.job = "0123";
  all.push_back(bytes_of(encode(welcome)));
  return all;
}
