// Vectors of words (skip-gram with negative samples) from text files. A step changes a few rows of a large table, and
// only these rows are exchanged: all_reduce_rows.
//   word_vectors --nproc-per-node=2 README.md rank gradient

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr std::size_t width = 32;

/// The words of a file that occur at least three times; the most frequent one has number 0.
struct Text {
  explicit Text(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> all;
    for (std::string word; file >> word;) {
      std::string letters;
      for (const char c : word) {
        if (std::isalpha(static_cast<unsigned char>(c)) != 0)
          letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
      if (!letters.empty()) all.push_back(letters);
    }
    std::map<std::string, std::size_t> counts;
    for (const std::string& word : all)
      ++counts[word];
    std::erase_if(counts, [](const auto& entry) { return entry.second < 3; });
    std::vector<std::pair<std::size_t, std::string>> order;
    for (const auto& [word, count] : counts)
      order.emplace_back(count, word);
    std::sort(order.rbegin(), order.rend());
    for (const auto& [count, word] : order) {
      numbers[word] = words.size();
      words.push_back(word);
    }
    for (const std::string& word : all) {
      if (numbers.count(word) != 0) text.push_back(numbers[word]);
    }
  }

  std::vector<std::string> words;
  std::map<std::string, std::size_t> numbers;
  std::vector<std::size_t> text;  ///< the numbers of its words
};

/// Rows of words, behind them rows of their contexts.
class Table {
 public:
  explicit Table(std::size_t words) : words_(words), values_(2 * words * width), squares_(values_.size()) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> small(-0.5F / width, 0.5F / width);
    for (std::size_t i = 0; i < words * width; ++i)
      values_[i] = small(random);
  }

  /// Adds the gradients of one pair to `ids` and `rows`. @returns its loss
  float add_pair(std::size_t word, std::size_t context, bool is_real, std::vector<std::int64_t>& ids,
                 std::vector<float>& rows) const {
    const float* const a = &values_[word * width];
    const float* const b = &values_[(words_ + context) * width];
    float product = 0;
    for (std::size_t k = 0; k < width; ++k)
      product += a[k] * b[k];
    const float probability = 1 / (1 + std::exp(-product));
    const float slope = probability - (is_real ? 1.0F : 0.0F);
    ids.push_back(static_cast<std::int64_t>(word));
    ids.push_back(static_cast<std::int64_t>(words_ + context));
    for (std::size_t k = 0; k < width; ++k)
      rows.push_back(slope * b[k]);
    for (std::size_t k = 0; k < width; ++k)
      rows.push_back(slope * a[k]);
    return -std::log(std::max(is_real ? probability : 1 - probability, 1e-6F));
  }

  /// Adagrad, of the rows that have changed.
  void descend(const dtrain::group::RowSum<float>& changes, float rate) {
    for (std::size_t i = 0; i < changes.ids().size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(changes.ids()[i]) * width;
      for (std::size_t k = 0; k < width; ++k) {
        const float gradient = changes.row(i)[k];
        squares_[begin + k] += gradient * gradient;
        values_[begin + k] -= rate * gradient / std::sqrt(squares_[begin + k] + 1e-8F);
      }
    }
  }

  float cosine(std::size_t first, std::size_t second) const {
    float product = 0, squares = 0, others = 0;
    for (std::size_t k = 0; k < width; ++k) {
      const float a = values_[first * width + k], b = values_[second * width + k];
      product += a * b;
      squares += a * a;
      others += b * b;
    }
    return product / std::sqrt(squares * others);
  }

 private:
  std::size_t words_;
  std::vector<float> values_;
  std::vector<float> squares_;  ///< sums of the gradients' squares
};

/// Each word of a batch with its neighbours, and with five others by chance. @returns the mean loss of an epoch's pairs
double train_epoch(const Group& group, const Text& text, Table& table, std::uint64_t epoch,
                   dtrain::group::RowSum<float>& changes) {
  const dtrain::DistributedSampler sampler{group, {.dataset_size = text.text.size(), .global_batch = 256, .seed = 1}};
  std::array<double, 2> sums{};  // of losses, and pairs
  std::vector<std::int64_t> ids;
  std::vector<float> rows;
  for (const std::span<const std::size_t> batch : sampler.batches(epoch)) {
    ids.clear();
    rows.clear();
    for (const std::size_t at : batch) {
      std::mt19937_64 random(epoch * text.text.size() + at);  // the same on any number of ranks
      for (std::size_t near = at < 2 ? 0 : at - 2; near < std::min(at + 3, text.text.size()); ++near) {
        if (near == at) continue;
        sums[0] += table.add_pair(text.text[at], text.text[near], true, ids, rows);
        for (int i = 0; i < 5; ++i) {
          const std::size_t other = text.text[random() % text.text.size()];
          sums[0] += table.add_pair(text.text[at], other, false, ids, rows);
        }
        sums[1] += 6;
      }
    }
    group.all_reduce_rows(ids, rows, changes);
    table.descend(changes, 0.05F);
  }
  group.all_reduce(sums);
  return sums[0] / sums[1];
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](Group group, dtrain::Arguments arguments) {
    const Text text(arguments.size() > 1 ? arguments[1] : "README.md");
    if (text.words.size() < 10) {
      throw dtrain::Error(dtrain::Errc::usage, "word_vectors FILE WORD...: give a file with more text");
    }
    Table table(text.words.size());
    dtrain::group::RowSum<float> changes(width);  // also the memory of the exchange
    for (std::uint64_t epoch = 0; epoch < 10; ++epoch) {
      const double loss = train_epoch(group, text, table, epoch, changes);
      if (group.rank() == 0) std::printf("epoch %d: loss %.4f\n", static_cast<int>(epoch), loss);
    }
    for (std::size_t i = 2; i < arguments.size() && group.rank() == 0; ++i) {
      const auto found = text.numbers.find(arguments[i]);
      if (found == text.numbers.end()) continue;
      std::vector<std::pair<float, std::string>> near;
      for (std::size_t other = 0; other < text.words.size(); ++other)
        near.emplace_back(table.cosine(found->second, other), text.words[other]);
      std::sort(near.rbegin(), near.rend());
      std::printf("%s: %s, %s, %s\n", arguments[i], near[1].second.c_str(), near[2].second.c_str(),
                  near[3].second.c_str());
    }
  });
}
