#pragma once
/// @file
/// SetupMessage: message between ranks of one host during the setup of shared memory.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

enum class SetupMessageKind : std::uint32_t {
  hello = 1,  ///< peer to rank 0: rank, token
  request,    ///< peer to rank 0: requested bytes
  offer,      ///< rank 0 to peer: bytes of the segment, nonce; an address, or else the descriptor follows
  ready,      ///< peer to rank 0: success, or code and text of its error
  outcome,    ///< rank 0 to peer: success of all ranks, or code and text of the error
};

/// An error that another rank sent: its sentence is complete.
struct RemoteError : Error {
  RemoteError(Errc code, std::string sentence) : Error(code, std::move(sentence)) {}
};

/// A fixed size: the same program runs at both ends.
struct SetupMessage {
  static constexpr std::uint64_t magic_number = 0x6474'7261'696e'0001;  // "dtrain", version of this protocol

  std::uint64_t magic = magic_number;
  SetupMessageKind kind = SetupMessageKind::hello;
  std::int32_t rank = 0;     ///< the sender's rank in the channel
  std::uint64_t number = 0;  ///< of the setup on this channel: 1, 2, ...
  std::uint64_t bytes = 0;
  std::uint64_t nonce = 0;
  std::uint64_t address = 0;  ///< of an InProcessTransfer, in an offer to a thread of the same process
  std::int32_t code = 0;      ///< 0: success; else an Errc
  std::array<char, 64> token{};
  std::array<char, 1024> text{};

  std::span<const std::byte> as_bytes() const noexcept { return std::as_bytes(std::span(this, 1)); }

  std::string text_as_string() const { return {text.begin(), std::find(text.begin(), text.end(), '\0')}; }

  void set_error(const Error& error) noexcept {
    const bool own = error.code().category() == dtrain_category();
    code = own ? error.code().value() : static_cast<std::int32_t>(Errc::job_failed);
    const std::string_view sentence = error.what();
    std::memcpy(text.data(), sentence.data(), std::min(sentence.size(), text.size()));
  }

  /// @throws RemoteError if it carries an error
  void throw_if_error() const {
    if (code != 0) {
      throw RemoteError(static_cast<Errc>(code), text_as_string());
    }
  }
};
static_assert(std::is_trivially_copyable_v<SetupMessage>);

/// @throws Error (protocol) if the bytes are no message
inline SetupMessage message_from(const std::vector<std::byte>& bytes) {
  SetupMessage message;
  if (bytes.size() == sizeof(SetupMessage)) {
    std::memcpy(&message, bytes.data(), sizeof(SetupMessage));
  }
  if (bytes.size() != sizeof(SetupMessage) || message.magic != SetupMessage::magic_number) {
    throw Error(Errc::protocol,
                "a message of another program, or of another version of this one, came instead of a rank's");
  }
  return message;
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
