// What dtrain costs to compile, by the compiler that built this program: README's program in one file and with the
// definitions apart, the umbrella, a model's source file, and the definitions, each as a ratio to the front end's time
// for the std headers that dtrain includes, compiled in turns with them. Seconds are of the processor, which another
// program on the machine changes less than those of a clock.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/command.hpp"
#include "bench/goal.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"

namespace {

constexpr const char* bench_name = "compile_time_bench";
constexpr const char* usage_line = "[--samples=N] [--json=FILE]";
constexpr std::uint64_t code_goal = 750'000;
constexpr std::uint64_t memory_goal = 600'000'000;

namespace fs = std::filesystem;

/// Removed with everything in it.
class WorkFolder {
 public:
  WorkFolder() {
    std::string name = (fs::temp_directory_path() / "dtrain-compile-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw dtrain::errno_error("making a folder for the benchmark");
    }
    path_ = name;
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name) << content;
    return path_ / name;
  }

 private:
  fs::path path_;
};

/// The standard library's headers that dtrain's headers include, one directive each.
std::string std_headers() {
  std::set<std::string> directives;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(DTRAIN_SOURCE_DIR "/include")) {
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view directive = "#include <";
      // The name has no dot and no slash, as C's and dtrain's have, and no space, as the sentence that refuses C++17
      // has.
      if (line.starts_with(directive) && line.find_first_of("./ ", directive.size()) == std::string::npos) {
        directives.insert(line + '\n');
      }
    }
  }
  std::string text;
  for (const std::string& directive : directives) {
    text += directive;
  }
  return text;
}

/// Bytes of machine code in an object file: its sections .text and .text.*, by `size -A`. @throws Error (protocol)
std::uint64_t code_bytes(const std::string& object) {
  const bench::CommandOutput sections =
      bench::run_command({"size", "-A", object}, dtrain::Deadline::after(std::chrono::seconds(60)));
  if (!sections.succeeded) {
    throw dtrain::Error(dtrain::Errc::protocol, "reading the sizes of " + object + " with `size -A` failed");
  }
  std::istringstream lines(sections.text);
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t size = 0;
    if (words >> name >> size && name.starts_with(".text")) {
      bytes += size;
    }
  }
  return bytes;
}

/// One thing to compile.
struct Subject {
  std::string what;
  double goal;  ///< ratio to the std headers; 0: none
  std::string file;
  std::vector<std::string> flags;
  std::string object{};  ///< written; empty: the front end alone runs
  std::vector<double> seconds{};
  std::uint64_t peak_bytes = 0;

  void compile() {
    std::vector<std::string> command{DTRAIN_BENCH_COMPILER, "-std=c++20", file};
    command.insert(command.end(), flags.begin(), flags.end());
    if (object.empty()) {
      command.push_back("-fsyntax-only");
    } else {
      command.insert(command.end(), {"-O2", "-c", "-o", object});
    }
    const bench::CommandOutput compiled =
        bench::run_command(std::move(command), dtrain::Deadline::after(std::chrono::seconds(600)));
    if (!compiled.succeeded) {
      throw dtrain::Error(dtrain::Errc::protocol, "compiling " + what + " failed");
    }
    seconds.push_back(compiled.processor_seconds);
    peak_bytes = std::max(peak_bytes, compiled.peak_bytes);
  }
};

/// A model in a source file of its own, as the guide advises.
constexpr const char* model_file = R"(#include <dtrain/ddp/parameter.hpp>
#include <dtrain/ddp/ready.hpp>
#include <vector>
struct Line {
  float value[2] = {0, 0};
  float gradient[2] = {0, 0};
  std::vector<dtrain::Parameter> parameters();
  void backward(float x, float y, dtrain::Ready ready);
};
std::vector<dtrain::Parameter> Line::parameters() {
  return {{"slope", dtrain::tensor_view(&value[0], {1}), dtrain::tensor_view(&gradient[0], {1})},
          {"offset", dtrain::tensor_view(&value[1], {1}), dtrain::tensor_view(&gradient[1], {1})}};
}
void Line::backward(float x, float y, dtrain::Ready ready) {
  gradient[1] = 2 * (value[0] * x + value[1] - y);
  ready(1);
  gradient[0] = gradient[1] * x;
  ready(0);
}
)";

void print_goals(const Subject& subject, double ratio, std::uint64_t code) {
  const std::string limit = bench::text_of(subject.goal, " times the std headers");
  bench::print_goal(subject.what + ": at most " + limit, ratio <= subject.goal, bench::text_of(ratio, ""));
  if (subject.what == "program header-only") {
    bench::print_goal("its code at most " + std::to_string(code_goal) + " bytes", code <= code_goal,
                      std::to_string(code));
    bench::print_goal("the compiler's memory at most " + std::to_string(memory_goal) + " bytes",
                      subject.peak_bytes <= memory_goal, std::to_string(subject.peak_bytes));
  }
}

void measure(const bench::Options& options) {
  const WorkFolder folder;
  const std::string umbrella = folder.file("umbrella.cpp", "#include <dtrain/dtrain.hpp>\n");
  const std::string program = DTRAIN_SOURCE_DIR "/examples/first_program.cpp";
  const std::string object = folder.file("compiled.o", "");
  const std::vector<std::string> all{"-I" DTRAIN_SOURCE_DIR "/include"};
  const std::vector<std::string> single{"-I" DTRAIN_SOURCE_DIR "/single_include"};
  const std::vector<std::string> apart{all[0], "-DDTRAIN_SEPARATE_COMPILATION=1"};
  const std::vector<std::string> definitions{apart[0], apart[1], "-DDTRAIN_IMPLEMENTATION"};

  Subject std_front{"std headers", 0, folder.file("std.cpp", std_headers()), {}};
  std::vector<Subject> subjects{{"program header-only", 40, program, all, object},
                                {"program compiled", 3, program, apart, object},
                                {"umbrella", 10, umbrella, all},
                                {"umbrella compiled", 0, umbrella, apart},
                                {"single header", 0, umbrella, single},
                                {"model file", 1.2, folder.file("model.cpp", model_file), all, object},
                                {"definitions", 50, umbrella, definitions, object}};
  const int samples = options.samples > 0 ? options.samples : 3;
  std::vector<std::uint64_t> code(subjects.size());
  for (int sample = 0; sample < samples; ++sample) {
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      std_front.compile();
      subjects[i].compile();
      code[i] = subjects[i].object.empty() ? 0 : code_bytes(object);
    }
  }

  bench::ResultRows rows;
  const auto row_of = [](const Subject& subject, const char* system) {
    bench::Row row{bench_name, system, subject.what};
    row.ranks = 1;
    row.median_seconds = bench::median(subject.seconds);
    row.samples = subject.seconds.size();
    return row.with_bytes("peak_bytes", subject.peak_bytes);
  };
  rows.add(row_of(std_front, "limit"));
  std::vector<double> ratios;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    bench::Row row = row_of(subjects[i], "dtrain");
    ratios.push_back(row.median_seconds / bench::median(std_front.seconds));
    row.with("ratio_to_std", ratios.back());
    if (subjects[i].goal > 0) {
      row.with("goal", subjects[i].goal);
    }
    if (code[i] > 0) {
      row.with_bytes("code_bytes", code[i]);
    }
    rows.add(row);
  }
  std::printf("         compiler: %s\n", DTRAIN_BENCH_COMPILER_NAME);
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    if (subjects[i].goal > 0) {
      print_goals(subjects[i], ratios[i], code[i]);
    }
  }
  rows.write_json(options.json);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_benchmark(bench_name, usage_line, argc, argv,
                              [&] { measure(bench::Options::parse(argc, argv, {1})); });
}
