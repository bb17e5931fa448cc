// The messages of an elastic job's workers from anywhere: each is nothing, or bounded and the same when it is sent
// again; and a formation bears whatever is announced to it.

#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_state.hpp"
#include "fuzz/codec_invariants.hpp"

namespace rendezvous = dtrain::rendezvous;

namespace {

rendezvous::Announce some_announce() {
  rendezvous::Announce announce;
  announce.worker = {"0123-4567", 4711, 0x1122334455667788};
  announce.host = "host-a";
  announce.settings = "kept state=8 tensors, 123\n";
  return announce;
}

/// Counts what a formation sends; it has nowhere to send it.
struct Counts {
  std::optional<dtrain::Cause> open_attempt(std::uint64_t, int size) {
    assigned += size;
    return std::nullopt;
  }
  void fail_attempt(const dtrain::Cause&) {}
  void send(rendezvous::ConnectionId, const rendezvous::ToWorker& message) {
    assigned -= std::holds_alternative<rendezvous::Assignment>(message) ? 1 : 0;
  }
  void close(rendezvous::ConnectionId) {}
  void on_end(const dtrain::Cause*) {}
  void warn(const std::string&) {}
  int assigned = 0;
};

void announce(const rendezvous::Announce& message) {
  Counts counts;
  rendezvous::FormationState state(counts, {}, 77);
  const dtrain::Deadline::Clock::time_point now{};
  const auto refused = state.announce(1, message, now);
  fuzz::require(refused.has_value() == (state.attempt() == 0), "a worker alone gets a rank, or is refused");
  fuzz::require(counts.assigned == 0, "each rank of an attempt is assigned");
  if (refused) {
    fuzz::require_sentence(refused->sentence);
  }
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const dtrain::Cause cause{dtrain::CauseKind::resized, -1, "", "one more worker waits"};
  rendezvous::Announce trained = some_announce();
  trained.job = 77;
  trained.progress = {3, 500};
  return {text_of(rendezvous::encode(some_announce())),
          text_of(rendezvous::encode(trained)),
          text_of(rendezvous::encode(rendezvous::Committed{3, {99, 0, {}}})),
          text_of(rendezvous::encode(rendezvous::Finished{3, true})),
          text_of(rendezvous::encode(rendezvous::Assignment{77, 3, 1, 4, {2, 500}, 1})),
          text_of(rendezvous::encode(rendezvous::Barred{4000, "a new worker of this host broke attempt 5"})),
          text_of(rendezvous::encode(rendezvous::Failure{cause})),
          text_of(rendezvous::encode(rendezvous::FailureReport{cause})),
          text_of(rendezvous::encode(rendezvous::Refused{"it is another job's", true}))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> frame = std::as_bytes(std::span(data, size));
  fuzz::require_round_trip(frame, rendezvous::decode<rendezvous::FromWorker>);
  fuzz::require_round_trip(frame, rendezvous::decode<rendezvous::ToWorker>);
  const auto decoded = rendezvous::decode<rendezvous::FromWorker>(frame);
  if (const auto* const message = decoded ? std::get_if<rendezvous::Announce>(&*decoded) : nullptr) {
    fuzz::require_printable(message->host, rendezvous::max_name_bytes);
    fuzz::require(message->settings.size() <= rendezvous::max_settings_bytes, "the settings are bounded");
    announce(*message);
  }
  return 0;
}
