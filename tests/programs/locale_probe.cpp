// A program whose rank 0 has the user's locale and whose other ranks have the C locale, as where one host's environment
// sets LC_ALL. Trains a few steps with each hook that has numbers among its options, and prints the summaries.

#include <clocale>
#include <cstddef>
#include <functional>
#include "programs/prelude.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

struct Model {
  std::vector<float> value = std::vector<float>(4096, 1.0F);
  std::vector<float> gradient = std::vector<float>(4096, 0.5F);

  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(value.data(), {64, 64}), dtrain::tensor_view(gradient.data(), {64, 64})}};
  }
};

template <class Hook>
void train(const dtrain::ProcessGroup<Policy>& group, Hook& hook) {
  Model model;
  dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  for (int step = 0; step < 3; ++step)
    ddp.backward([&](dtrain::Ready ready) { ready(0); });
  std::printf("%s\n", ddp.summary().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("DTRAIN_RANK");
  if (rank != nullptr && std::string(rank) == "0" && std::setlocale(LC_ALL, "") == nullptr) {
    std::fprintf(stderr, "the user's locale is not there\n");
    return 3;
  }
  return dtrain::run<Policy>(argc, argv, [](const dtrain::ProcessGroup<Policy>& group) {
    dtrain::hooks::TopK top_k({.fraction = 0.25});
    train(group, top_k);
    dtrain::hooks::PowerSgd power_sgd({.rank = 2, .min_compression = 1.5});
    train(group, power_sgd);
    std::printf("rank %d has the decimal point %s\n", group.rank(), std::localeconv()->decimal_point);
    return 0;
  });
}
