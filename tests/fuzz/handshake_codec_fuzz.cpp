// The messages of a handshake from anywhere: each is nothing, or bounded and the same when it is sent again.

#include "fuzz/codec_invariants.hpp"

namespace rendezvous = dtrain::rendezvous;

namespace {

const std::string version = "9.8.7";

rendezvous::Join some_join() {
  rendezvous::Join join;
  join.info.rank = 3;
  join.info.host_id = "0123-4567";
  join.info.host = "host-a";
  join.info.local_rank = 1;
  join.info.settings = "policy=x\ndtype=y";
  join.world_size = 8;
  join.job = "train";
  join.origin.is_exact_job = join.origin.one_starter = true;
  join.origin.process_space = 4026531836;
  join.origin.starter = 4700;
  join.origin.starter_began = 123456;
  join.origin.starter_name = "bash";
  join.origin.program = "train";
  join.origin.build = "build id 5f3a";
  join.opens_store = true;
  join.process = 4711;
  join.join_timeout_ms = 600000;
  return join;
}

void require_hello(std::span<const std::byte> frame) {
  const auto hello = rendezvous::decode_hello(frame, version);
  if (!hello) {
    return;
  }
  if (const auto* refused = std::get_if<rendezvous::Refused>(&*hello)) {
    fuzz::require_sentence(refused->sentence);
    return;
  }
  const auto& received = std::get<rendezvous::Hello>(*hello);
  fuzz::require(received.version == version, "only this version is accepted");
  fuzz::require(received.role >= rendezvous::ClientRole::rank && received.role <= rendezvous::ClientRole::worker,
                "a role is one of three");
  const rendezvous::Frame again = rendezvous::encode(received);
  fuzz::require(std::equal(again.begin(), again.end(), frame.begin(), frame.end()), "a hello has one form");
}

void require_bounded(const rendezvous::Join& join) {
  fuzz::require_printable(join.info.host, rendezvous::max_name_bytes);
  fuzz::require_printable(join.job, rendezvous::max_name_bytes);
  fuzz::require_printable(join.origin.starter_name, rendezvous::max_name_bytes);
  fuzz::require_printable(join.origin.program, rendezvous::max_name_bytes);
  fuzz::require_printable(join.origin.build, rendezvous::max_name_bytes);
  fuzz::require(join.info.settings.size() <= rendezvous::max_settings_bytes, "the settings are bounded");
  fuzz::require(join.info.local_rank.value_or(0) >= 0 && join.info.node_count.value_or(0) >= 0,
                "what was stated is no negative number");
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  rendezvous::Hello hello;
  hello.version = version;
  hello.has_secret = true;
  const dtrain::Cause cause{dtrain::CauseKind::timeout, 2, "host-b", "it waited"};
  return {text_of(rendezvous::encode(hello)),
          text_of(rendezvous::encode(hello, 9)),
          text_of(rendezvous::encode(some_join())),
          text_of(rendezvous::encode(rendezvous::Challenge{{}, true})),
          text_of(rendezvous::encode(rendezvous::Accepted{500, 5000, {}})),
          text_of(rendezvous::encode(rendezvous::Refused{"rank 3 is taken"})),
          text_of(rendezvous::encode(rendezvous::Failure{cause}))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> frame = std::as_bytes(std::span(data, size));
  require_hello(frame);
  fuzz::require_round_trip(frame, rendezvous::decode<std::variant<rendezvous::Join>>);
  fuzz::require_round_trip(frame, rendezvous::decode<rendezvous::HandshakeReply>);
  if (const auto join = rendezvous::decode<std::variant<rendezvous::Join>>(frame)) {
    require_bounded(std::get<rendezvous::Join>(*join));
  }
  return 0;
}
