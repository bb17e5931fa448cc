#pragma once
/// @file
/// The example fashion_mnist and its data, for integration tests.

#include <filesystem>
#include <string>

#include "support/skip.hpp"

namespace fashion_mnist_program {

inline const std::string example = DTRAIN_EXAMPLES_DIR "/fashion_mnist";
inline const std::string images = "/usr/share/datasets/fashion-mnist";

inline bool can_run() {
  return dtrain_test::needs(std::filesystem::exists(example), "fashion_mnist was not built: it needs Eigen and zlib") &&
         dtrain_test::needs(std::filesystem::exists(images + "/train-images-idx3-ubyte.gz"),
                            "the images are missing: install the package dataset-fashion-mnist");
}

}  // namespace fashion_mnist_program
