// A training over MPI whose gradients differ in every element, rank and step, for tests of what crosses between hosts.
//   mpi_training TOPOLOGY STEPS KIB [FILE]
// TOPOLOGY is flat, ring, tree, hierarchical or server; KIB the size of the model. Rank 0 prints "digest D", the
// SHA-256 of the parameters, and writes their bytes to FILE. Every rank prints "phase steady" in its third step.
#include "programs/prelude.hpp"
#if DTRAIN_WITH_MPI

#include <fstream>
#include <span>

namespace {

struct Layer {
  std::vector<float> value;
  std::vector<float> gradient;
};

struct Model {
  explicit Model(std::size_t elements) {
    for (Layer& layer : layers) {
      layer.value.assign(elements / layers.size(), 1.0F);
      layer.gradient.assign(elements / layers.size(), 0.0F);
    }
  }
  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> all;
    for (Layer& layer : layers) {
      const auto count = static_cast<std::int64_t>(layer.value.size());
      all.push_back({"layer" + std::to_string(all.size()), dtrain::tensor_view(layer.value.data(), {count}),
                     dtrain::tensor_view(layer.gradient.data(), {count})});
    }
    return all;
  }

  std::vector<Layer> layers = std::vector<Layer>(8);
};

/// Of about 1, rounded differently by every order of summation.
void fill(std::vector<float>& gradient, std::uint32_t seed) {
  std::uint32_t state = seed * 2654435761U + 1;
  for (float& element : gradient) {
    state = state * 1664525U + 1013904223U;
    element = static_cast<float>(state >> 8) / static_cast<float>(1 << 24);
  }
}

void keep(const Model& model, const char* file) {
  dtrain::Sha256 hash;
  std::ofstream output(file == nullptr ? "/dev/null" : file, std::ios::binary);
  for (const Layer& layer : model.layers) {
    const auto bytes = std::as_bytes(std::span(layer.value));
    hash.update(bytes);
    output.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::printf("digest %s\n", dtrain::hex(hash.digest()).c_str());
}

template <class Topology>
int train(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi, Topology>;
  const int steps = std::atoi(argv[2]);
  const auto elements = static_cast<std::size_t>(std::atoi(argv[3])) * 1024 / sizeof(float);
  const char* const file = argc > 4 ? argv[4] : nullptr;
  return dtrain::run<Policy>(argc, argv, [&](dtrain::ProcessGroup<Policy> group) {
    Model model(elements);
    dtrain::DistributedDataParallel ddp{model, group};
    for (int step = 0; step < steps; ++step) {
      if (step == 2) {
        static_cast<void>(::dprintf(STDOUT_FILENO, "phase steady\n"));
      }
      ddp.backward([&](dtrain::Ready ready) {
        for (std::size_t layer = model.layers.size(); layer-- > 0;) {
          const auto seed = static_cast<std::uint32_t>((step * group.world_size() + group.rank()) * 8 + int(layer));
          fill(model.layers[layer].gradient, seed);
          ready(layer);
        }
      });
      for (Layer& layer : model.layers) {
        for (std::size_t i = 0; i < layer.value.size(); ++i)
          layer.value[i] -= layer.gradient[i] / 64;
      }
    }
    if (group.rank() == 0) {
      keep(model, file);
    }
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string topology = argc > 3 ? argv[1] : "";
  namespace paths = dtrain::topology;
  return topology == "flat"           ? train<paths::Flat>(argc, argv)
         : topology == "ring"         ? train<paths::Ring>(argc, argv)
         : topology == "tree"         ? train<paths::Tree>(argc, argv)
         : topology == "hierarchical" ? train<paths::Hierarchical<dtrain::backend::SharedMemory>>(argc, argv)
         : topology == "server"       ? train<paths::ParameterServer<1>>(argc, argv)
                                      : 2;
}

#else

int main() {
  return 77;
}

#endif
