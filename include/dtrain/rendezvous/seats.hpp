#pragma once
/// @file
/// The places of a job, one for each rank: who may sit down, who sits, who has got up. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/agreed_terms.hpp"
#include "dtrain/rendezvous/message.hpp"
#include "dtrain/rendezvous/rank_list.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// "rank 1 on host a (process 12)"
inline std::string who(int rank, const std::string& host, std::int64_t process) {
  return "rank " + std::to_string(rank) + " on host " + host + " (process " + std::to_string(process) + ")";
}
inline std::string who(const Join& join) {
  return who(join.facts.rank, join.facts.host, join.process);
}

/// Names a connection of the server's; never used twice.
using SessionId = std::uint64_t;

/// Who has taken the place of each rank, and what became of it.
class Seats {
 public:
  enum class State : std::uint8_t { empty = 1, joined, left, lost };

  struct Seat {
    State state = State::empty;
    SessionId session = 0;
    RankFacts facts;
    std::int64_t process = 0;

    std::string who() const { return rendezvous::who(facts.rank, facts.host, process); }
  };

  /// @param owner says in sentences whose world size it is: "rank 0 on host a", "the launcher on host a"
  Seats(int world_size, std::string owner) : owner_(std::move(owner)), seats_(static_cast<std::size_t>(world_size)) {}

  int world_size() const noexcept { return static_cast<int>(seats_.size()); }
  const Seat& at(int rank) const { return seats_.at(static_cast<std::size_t>(rank)); }

  /// Nothing where the rank has sat down; Refused where only this one is wrong, as everyone is who comes when all seats
  /// are taken (another job's rank, with this one's address); a Cause where the job cannot be formed, as with different
  /// world sizes or terms.
  std::variant<std::monostate, Refused, Cause> sit(SessionId session, const Join& join) {
    const int rank = join.facts.rank;
    if (join.world_size != world_size()) {
      const std::string text = "rank " + std::to_string(rank) + " on host " + join.facts.host +
                               " says that the world has " + std::to_string(join.world_size) + " ranks, " + owner_ +
                               " that it has " + std::to_string(world_size());
      if (complete()) {
        return Refused{text + ", and all of them have joined; give each job a port of its own (MASTER_PORT)"};
      }
      return Cause{CauseKind::disagreement, rank, join.facts.host, text + "; start all ranks with one world size"};
    }
    if (rank < 0 || rank >= world_size()) {
      return Refused{"rank " + std::to_string(rank) + " is out of range in a world of " + std::to_string(world_size()) +
                     " ranks (0 to " + std::to_string(world_size() - 1) + "); correct the rank of this process"};
    }
    Seat& seat = seats_[static_cast<std::size_t>(rank)];
    if (seat.state != State::empty) {
      const char* state = seat.state == State::joined ? ""
                          : seat.state == State::left ? ", which has left"
                                                      : ", which was lost";
      return Refused{"rank " + std::to_string(rank) + " is taken: " + seat.who() + " has it" + state +
                     "; give each process its own rank"};
    }
    if (taken_ == 0) {
      agreed_ = join.facts.agreed;
      agreed_by_ = "rank " + std::to_string(rank) + " on host " + join.facts.host;
    } else if (const auto difference = first_difference(join.facts.agreed, agreed_)) {
      return Cause{CauseKind::disagreement, rank, join.facts.host,
                   "rank " + std::to_string(rank) + " on host " + join.facts.host + " has " + difference->first + ", " +
                       agreed_by_ + " has " + difference->second +
                       "; start all ranks with the same program and settings"};
    }
    seat = Seat{State::joined, session, join.facts, join.process};
    seat.facts.agreed.clear();  // ten thousand copies of one text
    ++taken_;
    ++present_;
    return std::monostate{};
  }

  /// The seat of a rank that somebody has taken, also where he has got up again; null where it is free or there is
  /// none.
  const Seat* taken_by(int rank) const noexcept {
    if (rank < 0 || rank >= world_size()) {
      return nullptr;
    }
    const Seat& seat = seats_[static_cast<std::size_t>(rank)];
    return seat.state == State::empty ? nullptr : &seat;
  }

  /// The seat that the very process which says this sits in already; null where there is no such.
  const Seat* seat_of(const Join& join) const noexcept {
    const int rank = join.facts.rank;
    if (rank < 0 || rank >= world_size() || join.world_size != world_size()) {
      return nullptr;
    }
    const Seat& seat = seats_[static_cast<std::size_t>(rank)];
    const bool same = seat.facts.host_id == join.facts.host_id && seat.process == join.process;
    return seat.state == State::joined && same ? &seat : nullptr;
  }

  /// A rank that sits gets up. @param how left or lost
  void rise(int rank, State how) {
    seats_[static_cast<std::size_t>(rank)].state = how;
    --present_;
    left_ += how == State::left ? 1 : 0;
  }

  /// Whether every rank has sat down at some time.
  bool complete() const noexcept { return taken_ == seats_.size(); }

  /// How many sit now.
  std::size_t present() const noexcept { return present_; }

  bool anyone_left() const noexcept { return left_ > 0; }

  /// The ranks in a state, ascending.
  std::vector<int> in(State state) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (at(rank).state == state) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  /// What all said of themselves, in order of rank.
  std::vector<RankFacts> facts() const {
    std::vector<RankFacts> all;
    all.reserve(seats_.size());
    for (const Seat& seat : seats_) {
      all.push_back(seat.facts);
    }
    return all;
  }

 private:
  std::string owner_;
  std::string agreed_;     ///< what the first to sit down said
  std::string agreed_by_;  ///< who that was
  std::vector<Seat> seats_;
  std::size_t taken_ = 0;
  std::size_t present_ = 0;
  std::size_t left_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
