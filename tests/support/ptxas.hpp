#pragma once
/// @file
/// The CUDA toolkit's assembler, for PTX text that tests have no GPU to load on.

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

namespace support {

/// On the path or in /usr/local/cuda/bin.
class Ptxas {
 public:
  Ptxas() {
    for (const char* const candidate : {"ptxas", "/usr/local/cuda/bin/ptxas"}) {
      if (program_.empty() && std::system((std::string(candidate) + " --version >/dev/null 2>&1").c_str()) == 0) {
        program_ = candidate;
      }
    }
  }

  bool is_there() const { return !program_.empty(); }

  /// Whether it assembles the text for this GPU, as in sm_80, without a register that goes through memory.
  bool accepts(const std::string& text, int architecture) const {
    const std::string file = folder_.path + "/kernel.ptx";
    std::ofstream(file) << text;
    return std::system((program_ + " --warn-on-spills -Werror -arch=sm_" + std::to_string(architecture) + " -o " +
                        file + ".out " + file + " >/dev/null 2>&1")
                           .c_str()) == 0;
  }

  /// Those that it knows, from Volta on: toolkits forget old GPUs, and do not know new ones.
  std::vector<int> architectures() const {
    std::vector<int> known;
    for (const int architecture : {70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121}) {
      if (accepts(".version 6.0\n.target sm_70\n.address_size 64\n", architecture)) known.push_back(architecture);
    }
    return known;
  }

 private:
  TemporaryDirectory folder_;
  std::string program_;
};

}  // namespace support
