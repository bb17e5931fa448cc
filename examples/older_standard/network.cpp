// The library's file. It does not compile as C++20, where a u8 literal is no text of char.

#include "network.hpp"

#include <array>
#include <cmath>

namespace library {

namespace {

const std::size_t width = 16;
typedef std::array<float, width> Values;

}  // namespace

/// y is the sum of outer[k] * tanh(inner[k] * x + offset[k]).
class Network {
 public:
  Values values[3];
  Values gradients[3];
};

Network* make_network() {
  Network* const network = new Network();
  for (std::size_t k = 0; k < width; ++k) {
    network->values[0][k] = 0.5F + static_cast<float>(k % 4);
    network->values[1][k] = static_cast<float>(k) / 4 - 2;
  }
  return network;
}

void destroy(Network* network) {
  delete network;
}

std::vector<Tensor> tensors(Network& network) {
  const char* const names[] = {u8"inner", u8"offset", u8"outer"};
  std::vector<Tensor> list;
  for (std::size_t i = 0; i < 3; ++i) {
    list.push_back(Tensor{names[i], network.values[i].data(), network.gradients[i].data(), width});
  }
  return list;
}

double backward(Network& network, const std::vector<float>& inputs, void (*ready)(void* step, std::size_t i),
                void* step) {
  const auto samples = static_cast<float>(inputs.size());
  const Values& outer = network.values[2];
  std::vector<Values> activations(inputs.size());
  std::vector<float> errors(inputs.size());
  double loss = 0;
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    for (std::size_t k = 0; k < width; ++k) {
      activations[at][k] = std::tanh(network.values[0][k] * inputs[at] + network.values[1][k]);
      errors[at] += outer[k] * activations[at][k];
    }
    errors[at] -= std::sin(2 * inputs[at]);
    loss += errors[at] * errors[at] / samples;
  }
  network.gradients[2].fill(0);
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    for (std::size_t k = 0; k < width; ++k) {
      network.gradients[2][k] += 2 * errors[at] * activations[at][k] / samples;
    }
  }
  ready(step, 2);
  network.gradients[0].fill(0);
  network.gradients[1].fill(0);
  for (std::size_t at = 0; at < inputs.size(); ++at) {
    for (std::size_t k = 0; k < width; ++k) {
      const float slope = 2 * errors[at] * outer[k] * (1 - activations[at][k] * activations[at][k]) / samples;
      network.gradients[0][k] += slope * inputs[at];
      network.gradients[1][k] += slope;
    }
  }
  ready(step, 1);
  ready(step, 0);
  return loss;
}

void update(Network& network, double rate) {
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < width; ++k) {
      network.values[i][k] -= static_cast<float>(rate) * network.gradients[i][k];
    }
  }
}

}  // namespace library
