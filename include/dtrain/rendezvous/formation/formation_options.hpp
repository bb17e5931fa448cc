#pragma once
/// @file
/// FormationOptions: an elastic job's sizes, waits, and pauses between attempts.

#include <chrono>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FormationOptions {
  int min_workers = 1;  ///< an attempt with fewer workers does not form
  int max_workers = 1;  ///< further workers wait

  std::chrono::milliseconds first_formation{30000};    ///< wait for max_workers, once min_workers are there
  std::chrono::milliseconds rejoin_timeout{60000};     ///< wait for a rank to join an attempt
  std::chrono::milliseconds reconnect_timeout{10000};  ///< wait for a rank whose connection has ended
  std::chrono::milliseconds wait_timeout{600000};      ///< wait for min_workers, or for a worker that has the state;
                                                       ///< for a rank whose heartbeats come to leave a failed attempt
  std::chrono::milliseconds collect{1000};             ///< time from the first newcomer to the end of the attempt
  std::chrono::milliseconds least_resize_gap{1000};    ///< time between attempts that newcomers end (NewcomerLimits)
  std::chrono::seconds least_bar{1};     ///< wait of a host's newcomers, one of which broke an attempt before a commit
  std::chrono::seconds longest_bar{60};  ///< it doubles each time up to here
  int attempts_without_commit = 10;      ///< attempts in a row that end the job
  std::chrono::milliseconds least_pause{100};      ///< pause after two attempts in a row without a commit; it doubles
  std::chrono::milliseconds longest_pause{10000};  ///< up to here
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
