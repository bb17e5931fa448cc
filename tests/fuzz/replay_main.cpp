// Runs a fuzzer's target over mutations of its seeds, where the compiler has no libFuzzer.
//   NAME_fuzz [INPUTS [SEED]]    (100000 inputs, or as many as fit into 3 seconds; the same seed gives the same inputs)

#include <algorithm>
#include <chrono>
#include <random>

#include "fuzz/fuzz.hpp"

namespace {

class Mutations {
 public:
  explicit Mutations(unsigned seed) : random_(seed), seeds_(fuzz::seeds()) {
    for (const std::string& text : seeds_) {
      std::size_t begin = 0;
      while (begin < text.size()) {  // what lies between two of these bytes is put elsewhere as a whole
        const std::size_t end = std::min(text.find_first_of("\n=,;:\"[]{}()", begin), text.size());
        if (end > begin) {
          words_.push_back(text.substr(begin, end - begin));
        }
        begin = end + 1;
      }
    }
  }

  /// Every seed itself first, then changed ones.
  std::string input(std::size_t number) {
    if (number < seeds_.size()) {
      return seeds_[number];
    }
    std::string text = seeds_.empty() ? std::string() : seeds_[below(seeds_.size())];
    for (std::size_t changes = 1 + below(6); changes > 0; --changes) {
      change(text);
    }
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  char byte() { return static_cast<char>(below(4) == 0 ? below(256) : ' ' + below(95)); }

  void change(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(below(16), text.size() - at);
    switch (below(7)) {
      case 0: text.insert(at, 1, byte()); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(at, length)); break;
      case 3: text.resize(at); break;
      case 4: text.insert(at, words_.empty() ? std::string(1, byte()) : words_[below(words_.size())]); break;
      case 5: splice(text); break;
      default:
        if (at < text.size()) {
          text[at] = byte();
        }
    }
  }

  /// Some lines of another seed in front of this text's.
  void splice(std::string& text) {
    if (!seeds_.empty()) {
      const std::string& other = seeds_[below(seeds_.size())];
      const std::size_t line = std::min(other.find('\n', below(other.size() + 1)), other.size());
      text = other.substr(0, line) + "\n" + text;
    }
  }

  std::mt19937 random_;
  std::vector<std::string> seeds_;
  std::vector<std::string> words_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::size_t inputs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(argc > 1 ? 3600 : 3);
  Mutations mutations(argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)) : 1);
  std::size_t done = 0;
  for (; done < inputs && std::chrono::steady_clock::now() < end; ++done) {
    const std::string input = mutations.input(done);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
  std::printf("%zu inputs\n", done);
  return done > 0 ? 0 : 1;
}
