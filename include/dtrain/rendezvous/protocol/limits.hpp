#pragma once
/// @file
/// The bounds of everything that the store keeps or accepts.

#include <chrono>
#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// @name Bounds of the protocol: both sides refuse what exceeds them.
/// @{
inline constexpr std::size_t max_key_bytes = 1024;
inline constexpr std::size_t max_value_bytes = std::size_t{1} << 20;
inline constexpr std::size_t max_keys_per_wait = 1024;
inline constexpr std::size_t max_sentence_bytes = 8192;  ///< texts of causes and refusals; longer ones are cut
inline constexpr std::size_t max_name_bytes = 256;       ///< host names, host identities, versions
inline constexpr std::size_t max_settings_bytes = 1024;  ///< what the ranks compare when they join (job_settings.hpp)
inline constexpr int max_world_size = 1 << 20;
inline constexpr std::size_t max_barrier_ranges = 16384;  ///< of the ranks of one barrier (rank_set.hpp)
/// The largest frame that either side reads: a value with its key, or the keys of one wait.
inline constexpr std::size_t max_frame_bytes = max_value_bytes + (std::size_t{64} << 10);
/// What either side sends at most before the other has acknowledged it, in frames of a session: so much is kept for one
/// whose connection breaks. An acknowledgement follows at once on more than a quarter of it.
inline constexpr std::size_t max_unacknowledged_bytes = std::size_t{4} << 20;
/// The largest frame that is read from a connection that has not shown that it may join.
inline constexpr std::size_t max_handshake_bytes = std::size_t{4} << 10;
/// @}

/// What one server spends at most.
struct Limits {
  std::size_t keys = std::size_t{1} << 20;
  std::size_t store_bytes = std::size_t{256} << 20;     ///< of all keys and values
  std::size_t pending_requests = 1024;                  ///< of one session, not yet answered
  std::size_t waited_keys = 4096;                       ///< of one session, in all its waits
  std::size_t barrier_ranges = 4 * max_barrier_ranges;  ///< of one session, in all barriers that it waits in
  std::size_t outgoing_bytes = std::size_t{64} << 20;   ///< of one session that does not read its answers
  std::size_t pending_connections =
      2048;  ///< beyond it old ones are closed (pending_connection_limit.hpp, store_server.hpp)
  std::chrono::milliseconds handshake{5000};        ///< from accepting a connection to its whole Join
  std::chrono::milliseconds send{60000};            ///< for one frame that a session does not take
  std::chrono::milliseconds liveness{5000};         ///< how long a session that sends nothing counts as alive
  std::chrono::milliseconds reconnect_window{500};  ///< how long a session without a connection may come back
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
