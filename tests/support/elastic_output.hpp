#pragma once
/// @file
/// What the output of elastic_training (with the word `log`) says of a job: its attempts, commits and ends.

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "support/contains.hpp"

namespace support {

/// One of the ten attempts after `attempt`, of `ranks` ranks, in which a step was committed; 0: there is none.
inline int later_attempt(const std::string& output, int attempt, int ranks) {
  const std::string end = " size " + std::to_string(ranks) + " digest";
  for (int next = attempt + 1; next <= attempt + 10; ++next) {
    if (contains(output, " attempt " + std::to_string(next) + end)) return next;
  }
  return 0;
}

/// `ranks` ranks finish with the same weights, and no two ranks of an attempt have committed different weights at a
/// step; no step is left out. @param output of all ranks
inline void check_finished_training(const std::string& output, int ranks) {
  const std::regex end("finished as rank \\d+ of (\\d+): (\\w+ after \\d+) steps");
  std::multiset<std::string> ends;
  for (std::sregex_iterator i(output.begin(), output.end(), end), none; i != none; ++i) {
    CHECK((*i)[1].str() == std::to_string(ranks));
    ends.insert((*i)[2].str());
  }
  CHECK_MESSAGE(ends.size() == static_cast<std::size_t>(ranks), output);
  CHECK(std::set<std::string>(ends.begin(), ends.end()).size() == 1);
  std::map<std::pair<int, int>, std::set<std::string>> digests;  // by attempt and step
  std::set<int> steps;
  const std::regex line("commit (\\d+) attempt (\\d+) size \\d+ digest (\\w+)\n");
  for (std::sregex_iterator i(output.begin(), output.end(), line), none; i != none; ++i) {
    steps.insert(std::stoi((*i)[1].str()));
    digests[{std::stoi((*i)[2].str()), std::stoi((*i)[1].str())}].insert((*i)[3].str());
  }
  REQUIRE(!steps.empty());
  CHECK(steps.size() == static_cast<std::size_t>(*steps.rbegin()));
  for (const auto& each : digests) {
    CHECK_MESSAGE(each.second.size() == 1, "attempt " << each.first.first << ", step " << each.first.second);
  }
}

}  // namespace support
