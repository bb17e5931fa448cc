#pragma once
/// @file
/// What a training reached, as JSON.

#include <cstdint>
#include <string>
#include <vector>

#include "../shared/json_number.hpp"

namespace fashion_mnist {

struct Summary {
  int world_size = 1;
  std::int64_t epochs = 0;
  double test_accuracy = 0;
  double final_loss = 0;  ///< mean cross-entropy of the final parameters over the whole training set
  double seconds = 0;     ///< training only, of the slowest rank
  double samples_per_second = 0;
  std::vector<std::uint64_t> samples_per_rank;  ///< trained on, over all epochs
  std::uint64_t bytes_reduced = 0;              ///< gradients that one rank gave to reductions
  double exposed_ms_per_step = 0;               ///< what communication adds to a step; medians of rank 0
  double hidden_ms_per_step = 0;                ///< what it takes besides, while the backward pass runs
  std::string parameters_digest;
};

/// One field a line, in the order of the struct, and a line's end.
inline std::string to_json(const Summary& summary) {
  using shared::json_number;
  std::string shares;
  for (const std::uint64_t samples : summary.samples_per_rank) {
    shares += (shares.empty() ? "" : ", ") + std::to_string(samples);
  }
  return "{\n  \"world_size\": " + std::to_string(summary.world_size) +                 //
         ",\n  \"epochs\": " + std::to_string(summary.epochs) +                         //
         ",\n  \"test_accuracy\": " + json_number(summary.test_accuracy) +              //
         ",\n  \"final_loss\": " + json_number(summary.final_loss) +                    //
         ",\n  \"seconds\": " + json_number(summary.seconds) +                          //
         ",\n  \"samples_per_second\": " + json_number(summary.samples_per_second) +    //
         ",\n  \"samples_per_rank\": [" + shares + ']' +                                //
         ",\n  \"bytes_reduced\": " + std::to_string(summary.bytes_reduced) +           //
         ",\n  \"exposed_ms_per_step\": " + json_number(summary.exposed_ms_per_step) +  //
         ",\n  \"hidden_ms_per_step\": " + json_number(summary.hidden_ms_per_step) +    //
         ",\n  \"parameters_digest\": \"" + summary.parameters_digest + "\"\n}\n";
}

}  // namespace fashion_mnist
