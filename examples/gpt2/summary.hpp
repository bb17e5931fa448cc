#pragma once
/// @file
/// What a training reached, as JSON.

#include <cstdint>
#include <string>
#include <vector>

#include "../shared/json_number.hpp"

namespace gpt2 {

struct Summary {
  int world_size = 1;
  std::int64_t steps = 0;
  double final_loss = 0;                   ///< mean over the last ten steps
  double step_ms = 0;                      ///< median, of the slowest rank
  double exposed_ms_per_step = 0;          ///< what a step takes beyond the same step without communication; rank 0's
  std::uint64_t bytes_sent_per_step = 0;   ///< by rank 0, in one direction
  std::uint64_t state_bytes_per_rank = 0;  ///< the optimizer's state and gradients kept, on the rank that has most
  std::uint64_t optimizer_bytes = 0;       ///< among them, of the optimizer
  std::uint64_t gradient_bytes = 0;        ///< and of gradients
  std::uint64_t parameters = 0;
  std::vector<double> losses;  ///< of each step: mean cross-entropy of its batch, before its update
  std::string parameters_digest;
};

/// One field a line, in the order of the struct, and a line's end.
inline std::string to_json(const Summary& summary) {
  using shared::json_number;
  std::string losses;
  for (const double loss : summary.losses) {
    losses += (losses.empty() ? "" : ", ") + json_number(loss);
  }
  return "{\n  \"world_size\": " + std::to_string(summary.world_size) +                      //
         ",\n  \"steps\": " + std::to_string(summary.steps) +                                //
         ",\n  \"final_loss\": " + json_number(summary.final_loss) +                         //
         ",\n  \"step_ms\": " + json_number(summary.step_ms) +                               //
         ",\n  \"exposed_ms_per_step\": " + json_number(summary.exposed_ms_per_step) +       //
         ",\n  \"bytes_sent_per_step\": " + std::to_string(summary.bytes_sent_per_step) +    //
         ",\n  \"state_bytes_per_rank\": " + std::to_string(summary.state_bytes_per_rank) +  //
         ",\n  \"optimizer_bytes\": " + std::to_string(summary.optimizer_bytes) +            //
         ",\n  \"gradient_bytes\": " + std::to_string(summary.gradient_bytes) +              //
         ",\n  \"parameters\": " + std::to_string(summary.parameters) +                      //
         ",\n  \"losses\": [" + losses + ']' +                                               //
         ",\n  \"parameters_digest\": \"" + summary.parameters_digest + "\"\n}\n";
}

}  // namespace gpt2
