// Gradient boosting by LightGBM on several ranks. LightGBM's network is two functions; here they call dtrain's
// collectives.
//   trees_lightgbm --nproc-per-node=2 train.csv objective=regression metric=l2 num_iterations=50 output_model=model.txt
// Parameters are LightGBM's. For comparison with its sockets: machines=127.0.0.1:12400,127.0.0.1:12401

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "c_api.hpp"

namespace {

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

const Group* network = nullptr;  // LightGBM's functions have no argument for it
std::exception_ptr error_in_network;

template <class F>
void in_network(F&& f) {
  try {
    f();
  } catch (...) {
    error_in_network = std::current_exception();
    throw;  // LightGBM's call returns -1
  }
}

template <class Size>
std::span<const std::int32_t> sizes(const std::int32_t* begin, Size count) {
  return {begin, static_cast<std::size_t>(count)};
}

void reduce_scatter(char* input, std::int32_t input_bytes, int element_bytes, const std::int32_t*,
                    const std::int32_t* block_bytes, int blocks, char* output, std::int32_t,
                    const lightgbm::Reducer& reducer) {
  in_network([&] {
    const auto own = static_cast<std::size_t>(block_bytes[network->rank()]);
    network->reduce_scatter_v(std::span<const char>(input, static_cast<std::size_t>(input_bytes)),
                              std::span(output, own), sizes(block_bytes, blocks),
                              [&](std::span<char> into, std::span<const char> from) {
                                reducer(from.data(), into.data(), element_bytes, static_cast<int>(from.size()));
                              });
  });
}

void all_gather(char* input, std::int32_t, const std::int32_t*, const std::int32_t* block_bytes, int blocks,
                char* output, std::int32_t output_bytes) {
  in_network([&] {
    const auto own = static_cast<std::size_t>(block_bytes[network->rank()]);
    network->all_gather_v(std::span<const char>(input, own), std::span(output, static_cast<std::size_t>(output_bytes)),
                          sizes(block_bytes, blocks));
  });
}

void check(int result) {
  if (result == 0) return;
  if (error_in_network) std::rethrow_exception(error_in_network);
  throw std::runtime_error(std::string("LightGBM: ") + lightgbm::LGBM_GetLastError());
}

using Dataset = std::unique_ptr<void, int (*)(void*)>;
using Booster = std::unique_ptr<void, int (*)(void*)>;

struct Options {
  std::string file;
  std::string parameters;
  std::string machines;
  std::string model;
  int iterations = 100;
};

int number_in(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument("'" + std::string(text) + "' is no number");
  }
  return number;
}

Options options_of(dtrain::Arguments arguments, const Group& group) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::string_view value = argument.substr(argument.find('=') + 1);
    if (argument.find('=') == std::string_view::npos)
      options.file = argument;
    else if (argument.starts_with("machines="))
      options.machines = value;
    else if (argument.starts_with("output_model="))
      options.model = value;
    else if (argument.starts_with("num_iterations="))
      options.iterations = number_in(value);
    else
      options.parameters += std::string(argument) + " ";
  }
  if (options.file.empty()) {
    throw std::invalid_argument("give the file of the training data, then LightGBM's parameters as NAME=VALUE");
  }
  if (group.world_size() > 1) {
    options.parameters += "tree_learner=data num_machines=" + std::to_string(group.world_size()) + " ";
  }
  options.parameters += group.rank() == 0 ? "verbosity=0" : "verbosity=-1";
  return options;
}

void connect(const Group& group, const Options& options) {
  network = &group;
  const int ranks = group.world_size();
  if (ranks == 1) return;
  if (!options.machines.empty()) {
    std::string_view own = options.machines;
    for (int rank = 0; rank < group.rank(); ++rank)
      own.remove_prefix(own.find(',') + 1);
    own.remove_prefix(own.find(':') + 1);
    check(lightgbm::LGBM_NetworkInit(options.machines.c_str(), number_in(own.substr(0, own.find(','))), 2, ranks));
    return;
  }
  check(lightgbm::LGBM_NetworkInitWithFunctions(ranks, group.rank(), reinterpret_cast<void*>(&reduce_scatter),
                                                reinterpret_cast<void*>(&all_gather)));
}

/// The mean of the booster's first metric over the rows of all ranks.
double training_metric(const Group& group, const Booster& booster, std::int32_t rows) {
  int metrics = 0;
  check(lightgbm::LGBM_BoosterGetEvalCounts(booster.get(), &metrics));
  if (metrics != 1) throw std::invalid_argument("give one metric=NAME");
  double value = 0;
  check(lightgbm::LGBM_BoosterGetEval(booster.get(), 0, &metrics, &value));
  return group.all_reduce(value * rows, dtrain::ReduceOp::sum) /
         group.all_reduce(double{1} * rows, dtrain::ReduceOp::sum);
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    const Options options = options_of(arguments, group);
    connect(group, options);
    Dataset data(nullptr, lightgbm::LGBM_DatasetFree);
    void* made = nullptr;
    check(lightgbm::LGBM_DatasetCreateFromFile(options.file.c_str(), options.parameters.c_str(), nullptr, &made));
    data.reset(made);  // of several ranks each keeps a part of the rows
    std::int32_t rows = 0;
    check(lightgbm::LGBM_DatasetGetNumData(data.get(), &rows));
    Booster booster(nullptr, lightgbm::LGBM_BoosterFree);
    check(lightgbm::LGBM_BoosterCreate(data.get(), options.parameters.c_str(), &made));
    booster.reset(made);
    const auto begin = std::chrono::steady_clock::now();
    int is_finished = 0;
    for (int i = 0; i < options.iterations && is_finished == 0; ++i)
      check(lightgbm::LGBM_BoosterUpdateOneIter(booster.get(), &is_finished));
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    const double metric = training_metric(group, booster, rows);
    if (group.rank() == 0) {
      std::printf("training metric %.6f on %d rank(s), %.2f s\n", metric, group.world_size(), time.count());
      if (!options.model.empty()) {
        check(lightgbm::LGBM_BoosterSaveModel(booster.get(), 0, -1, 0, options.model.c_str()));
      }
    }
    check(lightgbm::LGBM_NetworkFree());
    return 0;
  });
}
