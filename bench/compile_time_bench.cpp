// What including dtrain costs: an empty file with the umbrella beside one with the std headers that the umbrella
// includes, by the compiler that built this program, in turns; and the README's program, in one file and in two.
// Seconds are of the processor, which another program on the machine changes less than those of a clock.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
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
constexpr double allowed_seconds = 0.5;

/// The fixed set: what dtrain's headers include of the standard library.
constexpr std::array std_headers{"algorithm",
                                 "array",
                                 "atomic",
                                 "bit",
                                 "cerrno",
                                 "cfenv",
                                 "charconv",
                                 "chrono",
                                 "climits",
                                 "concepts",
                                 "condition_variable",
                                 "coroutine",
                                 "csignal",
                                 "cstddef",
                                 "cstdint",
                                 "cstdio",
                                 "cstdlib",
                                 "cstring",
                                 "ctime",
                                 "deque",
                                 "exception",
                                 "functional",
                                 "initializer_list",
                                 "iterator",
                                 "limits",
                                 "list",
                                 "map",
                                 "memory",
                                 "mutex",
                                 "new",
                                 "numeric",
                                 "optional",
                                 "set",
                                 "span",
                                 "string",
                                 "string_view",
                                 "system_error",
                                 "thread",
                                 "tuple",
                                 "type_traits",
                                 "unordered_map",
                                 "utility",
                                 "variant",
                                 "vector"};

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

double seconds_of_children() {
  rusage usage{};
  if (::getrusage(RUSAGE_CHILDREN, &usage) != 0) {
    throw dtrain::errno_error("asking for the processor's time");
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// One thing to compile.
struct Subject {
  std::string what;
  std::string file;
  std::vector<std::string> flags;
  std::vector<double> seconds{};

  void compile() {
    std::vector<std::string> command{DTRAIN_BENCH_COMPILER, "-std=c++20", file};
    command.insert(command.end(), flags.begin(), flags.end());
    const double before = seconds_of_children();
    if (!bench::run_command(std::move(command), dtrain::Deadline::after(std::chrono::seconds(300))).succeeded) {
      throw dtrain::Error(dtrain::Errc::protocol, "compiling " + what + " failed");
    }
    seconds.push_back(seconds_of_children() - before);
  }
};

/// The set is to stay what the headers include: says where it is not.
void print_differences() {
  std::set<std::string> included;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(DTRAIN_SOURCE_DIR "/include")) {
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view begin = "#include <";
      const std::string name = line.starts_with(begin) ? line.substr(begin.size(), line.find('>') - begin.size()) : "";
      if (!name.empty() && name.find_first_of("./") == std::string::npos) {
        included.insert(name);
      }
    }
  }
  const std::set<std::string> named(std_headers.begin(), std_headers.end());
  for (const std::string& name : included) {
    if (!named.contains(name)) {
      std::printf("<%s> is included, but not in the fixed set\n", name.c_str());
    }
  }
  for (const std::string& name : named) {
    if (!included.contains(name)) {
      std::printf("<%s> is in the fixed set, but not included\n", name.c_str());
    }
  }
}

void measure(const bench::Options& options) {
  const WorkFolder folder;
  std::string std_set;
  for (const char* header : std_headers) {
    std_set += std::string("#include <") + header + ">\n";
  }
  const std::string umbrella = folder.file("umbrella.cpp", "#include <dtrain/dtrain.hpp>\n");
  const std::string headers = folder.file("std.cpp", std_set);
  const std::vector<std::string> front{"-I" DTRAIN_SOURCE_DIR "/include", "-fsyntax-only"};
  const std::vector<std::string> object{"-I" DTRAIN_SOURCE_DIR "/include", "-c", "-o", "/dev/null"};
  const std::vector<std::string> single{"-I" DTRAIN_SOURCE_DIR "/single_include", "-fsyntax-only"};
  const std::vector<std::string> optimised{"-I" DTRAIN_SOURCE_DIR "/include", "-O2", "-c", "-o", "/dev/null"};

  std::vector<std::string> separate = optimised;
  separate.push_back("-DDTRAIN_SEPARATE_COMPILATION=1");
  std::vector<std::string> implementing = separate;
  implementing.push_back("-DDTRAIN_IMPLEMENTATION");

  Subject umbrella_front{"umbrella", umbrella, front};
  Subject std_front{"std headers", headers, front};
  Subject single_front{"single header", umbrella, single};
  Subject umbrella_object{"umbrella, to an object", umbrella, object};
  Subject first_program{"README's program, -O2", DTRAIN_SOURCE_DIR "/examples/first_program.cpp", optimised};
  Subject program_alone{"program alone, -O2", first_program.file, separate};
  Subject definitions{"definitions alone, -O2", umbrella, implementing};

  print_differences();
  const int samples = options.samples > 0 ? options.samples : 5;
  for (int sample = 0; sample < samples; ++sample) {
    umbrella_front.compile();
    std_front.compile();
  }
  single_front.compile();
  umbrella_object.compile();
  first_program.compile();
  program_alone.compile();
  definitions.compile();

  bench::ResultRows rows;
  const auto add = [&](const Subject& subject) {
    bench::Row row{bench_name, &subject == &std_front ? "limit" : "dtrain", subject.what};
    row.ranks = 1;
    row.median_seconds = bench::median(subject.seconds);
    row.samples = subject.seconds.size();
    rows.add(&subject == &std_front ? row.with("ratio", row.median_seconds / bench::median(umbrella_front.seconds))
                                    : row);
  };
  for (const Subject* subject :
       {&umbrella_front, &std_front, &single_front, &umbrella_object, &first_program, &program_alone, &definitions}) {
    add(*subject);
  }
  const double more = bench::median(umbrella_front.seconds) - bench::median(std_front.seconds);
  bench::print_goal("the umbrella at most 0.5 s more than the std headers it includes", more <= allowed_seconds,
                    bench::text_of(more, " s more, ") + DTRAIN_BENCH_COMPILER_NAME);
  if (!options.json.empty()) {
    rows.write_json(options.json);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_benchmark(bench_name, usage_line, argc, argv,
                              [&] { measure(bench::Options::parse(argc, argv, {1})); });
}
