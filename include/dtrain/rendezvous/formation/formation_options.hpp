#pragma once
/// @file
/// FormationOptions: sizes and waiting times of an elastic job.

#include <chrono>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FormationOptions {
  int min_workers = 1;  ///< an attempt with fewer workers does not form
  int max_workers = 1;  ///< further workers wait

  std::chrono::milliseconds first_formation{30000};    ///< for workers up to max_workers, once min_workers are there
  std::chrono::milliseconds rejoin_timeout{60000};     ///< for a rank to join an attempt
  std::chrono::milliseconds reconnect_timeout{10000};  ///< for a rank whose connection has ended
  std::chrono::milliseconds wait_timeout{600000};      ///< for min_workers, or for a worker that has the state; for a
                                                       ///< rank whose heartbeats come to leave a failed attempt
  std::chrono::milliseconds collect{1000};             ///< from the first newcomer to the end of the attempt
  std::chrono::milliseconds least_resize_gap{1000};    ///< between two attempts that newcomers end (NewcomerLimits)
  std::chrono::seconds least_bar{1};     ///< for newcomers of a host, one of which broke an attempt before a commit
  std::chrono::seconds longest_bar{60};  ///< it doubles each time up to here
  int attempts_without_commit = 10;      ///< so many in a row end the job
  std::chrono::milliseconds least_pause{100};      ///< after the second attempt in a row without a commit; it doubles
  std::chrono::milliseconds longest_pause{10000};  ///< up to here
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
