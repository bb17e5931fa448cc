#pragma once
/// @file
/// Formation options: sizes and waiting times of an elastic job. The launcher sets them, FormationState applies them.

#include <chrono>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FormationOptions {
  int min_workers = 1;  ///< an attempt with fewer workers does not form
  int max_workers = 1;  ///< further workers wait

  std::chrono::milliseconds first_formation{30000};    ///< for workers up to max_workers, once min_workers are there
  std::chrono::milliseconds rejoin_timeout{60000};     ///< for a rank to leave a failed attempt, and to join the next
  std::chrono::milliseconds reconnect_timeout{10000};  ///< for a rank whose connection has ended
  std::chrono::milliseconds wait_timeout{600000};      ///< for min_workers, or for a worker that has the state
  std::chrono::milliseconds collect{1000};             ///< from the first newcomer to the end of the attempt
  std::chrono::milliseconds least_resize_gap{1000};    ///< between two attempts that newcomers end
  std::chrono::seconds longest_bar{60};  ///< for newcomers of a host, one of which broke an attempt before a commit
  int attempts_without_commit = 10;      ///< so many in a row end the job
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
