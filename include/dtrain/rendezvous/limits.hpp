#pragma once
/// @file
/// Limits: bounds of messages, keys, values, sessions, connections and waits of a job's store; both sides reject what
/// exceeds them.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

// Bounds of the protocol. Both sides reject messages that exceed them.

/// The most bytes of a key or of a barrier's name, with its prefix.
/// @ingroup store
inline constexpr std::size_t max_key_bytes = 1024;

/// The most bytes of a value.
/// @ingroup store
inline constexpr std::size_t max_value_bytes = std::size_t{1} << 20;

/// The most keys of one call.
/// @ingroup store
inline constexpr std::size_t max_keys_per_wait = 1024;

inline constexpr const char* large_value_remedy = "; split it over several keys, or send it by a collective";
inline constexpr std::size_t max_sentence_bytes = 8192;  ///< texts of causes and rejections; longer ones are cut
inline constexpr std::size_t max_name_bytes = 256;       ///< host names, host identities, versions
inline constexpr std::size_t max_settings_bytes =
    1024;  ///< settings that joining ranks compare (membership/membership.hpp)
inline constexpr int max_world_size = 1 << 20;
inline constexpr std::size_t max_barrier_ranges = 16384;  ///< ranges of the ranks of one barrier (rank_set.hpp)
/// The largest frame that either side reads: a value with its key, or the keys of one wait.
inline constexpr std::size_t max_frame_bytes = max_value_bytes + (std::size_t{64} << 10);
/// The largest frame read from a connection before the store has accepted its rank.
inline constexpr std::size_t max_handshake_bytes = std::size_t{4} << 10;

/// Bounds of one server: memory, connections and waiting times.
struct Limits {
  std::size_t keys = std::size_t{1} << 20;
  std::size_t store_bytes = std::size_t{256} << 20;     ///< bytes of all keys and values
  std::size_t pending_requests = 1024;                  ///< requests of one session that are not yet answered
  std::size_t waited_keys = 4096;                       ///< keys of one session in all its waits
  std::size_t barrier_ranges = 4 * max_barrier_ranges;  ///< ranges of one session in all barriers that it waits in
  std::size_t outgoing_bytes = std::size_t{64} << 20;   ///< unsent, of one session (session.hpp)
  std::size_t pending_connections = 2048;               ///< the oldest are closed beyond it (job_state.hpp)
  std::chrono::milliseconds handshake{5000};            ///< time from accept to the receipt of the whole Join
  std::chrono::milliseconds send{60000};                ///< how long unsent frames of a session may make no progress
  std::chrono::milliseconds liveness{5000};             ///< how long a session that sends nothing counts as alive
  std::chrono::milliseconds rejoin{500};  ///< how long a rank may take to join again if its connection broke
                                          ///< before it could read that it had joined
  double straggler_factor = 1.15;         ///< the ratio to the ranks' median from which on a rank is slow; 0: none is
};

/// How often a client of a server sends a heartbeat: 0.5 s, or longer for more than 5000 clients, so that about 10,000
/// heartbeats a second arrive at most; at most a quarter of the liveness time.
inline std::chrono::milliseconds heartbeat_interval(const Limits& limits, int clients) noexcept {
  const std::chrono::milliseconds wanted(std::max(500, clients / 10));
  return std::max(std::chrono::milliseconds(1), std::min(wanted, limits.liveness / 4));
}

/// The time as a frame has it.
inline std::uint32_t wire_milliseconds(std::chrono::milliseconds time) noexcept {
  return static_cast<std::uint32_t>(std::min(time, std::chrono::milliseconds(0xffffffffU)).count());
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
