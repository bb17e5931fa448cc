/// @file
/// Sends and receives: each pair of ranks has a mailbox for each direction, through which messages go in pieces.

#include <algorithm>
#include <cstring>
#include <vector>

#include "operation.hpp"

namespace emulation {
namespace {

enum class Progress { none, some, mismatch };

/// A message and how much of it has gone.
class Transfer {
 public:
  Transfer(Communicator& communicator, const Message& message) : message_(message), mailbox_(mailbox(communicator)) {}

  bool is_done() const { return gone_ == message_.bytes; }
  /// Whether the other must not go before this one.
  bool comes_before(const Transfer& other) const {
    return message_.is_send == other.message_.is_send && message_.peer == other.message_.peer;
  }

  Progress advance() {
    const std::uint64_t read = mailbox_.read.load();
    const std::uint64_t written = mailbox_.written.load();
    const std::size_t length = std::min(mail_bytes, message_.bytes - gone_);
    if (message_.is_send) {
      if (written != read) return Progress::none;
      mailbox_.message_bytes = message_.bytes;
      std::memcpy(mailbox_.piece.data(), message_.address + gone_, length);
      mailbox_.written.store(written + 1);
    } else {
      if (written == read) return Progress::none;
      if (mailbox_.message_bytes != message_.bytes) return Progress::mismatch;
      std::memcpy(message_.address + gone_, mailbox_.piece.data(), length);
      mailbox_.read.store(read + 1);
    }
    gone_ += length;
    return Progress::some;
  }

 private:
  Mailbox& mailbox(Communicator& communicator) const {
    const auto own = static_cast<std::size_t>(communicator.rank());
    const auto peer = static_cast<std::size_t>(message_.peer);
    return message_.is_send ? communicator.segment().mail[own][peer] : communicator.segment().mail[peer][own];
  }

  Message message_;
  Mailbox& mailbox_;
  std::size_t gone_ = 0;
};

Progress advance_all(std::vector<Transfer>& transfers) {
  Progress whole = Progress::none;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto earlier = transfers.begin() + static_cast<std::ptrdiff_t>(i);
    const bool must_wait = std::any_of(transfers.begin(), earlier, [&](const Transfer& other) {
      return !other.is_done() && other.comes_before(transfers[i]);
    });
    if (must_wait || transfers[i].is_done()) continue;
    const Progress progress = transfers[i].advance();
    if (progress == Progress::mismatch) return progress;
    if (progress == Progress::some) whole = progress;
  }
  return whole;
}

}  // namespace

void run_messages(Communicator& communicator, const std::vector<Message>& messages) {
  std::vector<Transfer> transfers;
  for (const Message& message : messages)
    transfers.emplace_back(communicator, message);
  const auto is_done = [&] {
    return std::all_of(transfers.begin(), transfers.end(), [](const Transfer& each) { return each.is_done(); });
  };
  while (!is_done()) {
    Progress progress = Progress::none;
    if (!communicator.wait_for_ranks([&] { return (progress = advance_all(transfers)) != Progress::none; })) return;
    if (progress == Progress::mismatch) return mismatched(communicator);
    communicator.notify_ranks();
  }
}

}  // namespace emulation
