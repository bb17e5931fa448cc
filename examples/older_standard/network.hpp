#pragma once
// A training library without dtrain, for files of any standard from C++11 on: network.cpp is C++11, older_standard.cpp
// C++20.

#include <cstddef>
#include <string>
#include <vector>

namespace library {

struct Tensor {
  std::string name;
  float* value;
  float* gradient;
  std::size_t size;
};

class Network;
Network* make_network();
void destroy(Network* network);
std::vector<Tensor> tensors(Network& network);

/// Calls ready(step, i) when gradient i is final. @returns the mean squared error
double backward(Network& network, const std::vector<float>& inputs, void (*ready)(void* step, std::size_t i),
                void* step);
void update(Network& network, double rate);

}  // namespace library
