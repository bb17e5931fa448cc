#pragma once
/// @file
/// Launcher flags: help text, and parser that removes them from a program's command line. Command words: shell-like
/// splitting.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/nearest_name.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/identity/choose_start.hpp"
#include "dtrain/identity/node_identity.hpp"
#include "dtrain/launch/configuration/core_binding.hpp"

namespace DTRAIN_NAMESPACE::launch {

inline constexpr int most_restarts = 10000;  ///< bound of --max-restarts

/// Pure. Blanks separate words. '...' is literal. In "...", a backslash before \, ", $ or ` is removed. Outside quotes,
/// a backslash makes the next character literal. Nothing is expanded. Example: `sh -c '"$@"' --` has the words `sh`,
/// `-c`, `"$@"`, `--`. @returns nullopt for a quote without an end
inline std::optional<std::vector<std::string>> command_words(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  constexpr std::string_view escaped_in_quotes = "\\\"$`";
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    const bool has_next = i + 1 < text.size();
    const bool escapes = letter == '\\' && has_next &&
                         (quote == '\0' || (quote == '"' && escaped_in_quotes.find(text[i + 1]) != text.npos));
    if (quote == '\0' && blanks.find(letter) != blanks.npos) {
      if (in_word) {
        words.push_back(word);
        word.clear();
      }
      in_word = false;
      continue;
    }
    in_word = true;
    if (letter == quote) {
      quote = '\0';
    } else if (quote == '\0' && (letter == '\'' || letter == '"')) {
      quote = letter;
    } else {
      i += escapes ? 1 : 0;
      word += text[i];
    }
  }
  if (quote != '\0') {
    return std::nullopt;
  }
  if (in_word) {
    words.push_back(word);
  }
  return words;
}

inline constexpr const char* help_text =
    "Launcher flags (taken out of the program's arguments; --flag=v, --flag v, underscores as well):\n"
    "  --nproc-per-node=N|auto  workers to start (default 1); auto: one for each visible GPU where the program\n"
    "                           computes on GPUs, else for each core this process may use\n"
    "  --nnodes=N               nodes of the job; start this program once on each of them (default 1)\n"
    "  --nnodes=MIN:MAX         nodes come and go, if the program is elastic (see --min-ranks, by default the workers "
    "of\n"
    "                           MIN nodes); the job ends with node 0's launcher\n"
    "  --node-rank=R            which of them this one is, from 0 (MIN:MAX: any number but 0 on all others)\n"
    "  --master-addr=HOST       the host of node 0 (one node: not needed, the store listens at 127.0.0.1)\n"
    "  --master-port=P          the port of the job's store (one node: chosen by the system; several: 29500)\n"
    "  --max-restarts=N         how often all workers are started again after one failed (default 0; several nodes:\n"
    "                           node 0's counts); exit code 2 and a job ended by a signal are not tried again\n"
    "  --min-ranks=N            the job goes on with N ranks or more where workers are lost, if the program is "
    "elastic\n"
    "                           (dtrain::Elastic); --max-restarts is then how many workers each launcher replaces\n"
    "  --log-dir=DIR            also writes each worker's output to DIR/rank-R.stdout and DIR/rank-R.stderr, that of\n"
    "                           the K-th restart to DIR/attempt-K/rank-R.stdout and .stderr; an elastic job of\n"
    "                           several nodes has a folder DIR/HOST for each host\n"
    "  --wrap='CMD ARGS --'     puts a command in front of each worker's, such as valgrind, numactl, perf, strace,\n"
    "                           or gdb: --wrap='gdb -batch -ex run -ex bt --args'; quotes as in a shell\n"
    "  --wrap-rank=R            in front of rank R alone (elastic: of this launcher's worker R)\n"
    "  --bind=HOW               where workers run. core: each on cores of its own; numa: each on a NUMA node; none:\n"
    "                           anywhere; auto (default): core where workers compute on the host and cores suffice,\n"
    "                           and near each worker's GPU where the system names its NUMA node\n"
    "  --in-process             starts nothing: this process is rank 0 of 1, for a debugger\n"
    "  --help-launch            prints this\n"
    "  --                       everything after it is the program's\n"
    "Several nodes share a secret: the same DTRAIN_SECRET, or a file that DTRAIN_SECRET_FILE names, on each of them.\n"
    "Every line of a worker is shown behind '[rank] '; stdin goes to the first worker of the node, or to\n"
    "the one that --wrap-rank names. SIGINT, SIGTERM,\n"
    "SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are forwarded; SIGINT and SIGTERM end the job on all "
    "nodes:\n"
    "workers that are still there DTRAIN_GRACE_SECONDS later (default 30) are killed, 1 second after a second signal.\n"
    "A launcher that is killed takes its workers with it, but not what these have started; as PID 1 of a container it\n"
    "takes everything.\n";

/// Values of the launcher's flags, and the arguments that remain for the program.
struct Flags {
  identity::NodeFlags node;
  std::optional<std::string> log_dir;
  int max_restarts = 0;
  int min_ranks = 0;                 ///< --min-ranks: fewest ranks of an elastic job; 0: the job is not elastic
  std::vector<std::string> wrapper;  ///< the words of --wrap: a command in front of each worker
  std::optional<int> wrapped_rank;   ///< --wrap-rank: in front of this rank only
  Binding binding = Binding::automatic;
  bool in_process = false;  ///< this process becomes rank 0 of 1
  bool help = false;
  std::vector<std::string> program;  ///< the program's name and its own arguments, in order
  std::string mpirun_workers;        ///< "-n 4" or "-np 4" among them, which mpirun would take for itself; else empty
};

namespace detail {

inline constexpr std::array<std::string_view, 13> flag_names{
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--max-restarts", "--min-ranks",
    "--log-dir",        "--wrap",   "--wrap-rank", "--bind",        "--in-process",  "--help-launch",
};

/// Whether the flag is another launcher's name of --nproc-per-node.
inline bool is_short_for_workers(std::string_view flag) {
  return flag == "--nproc" || flag == "--nprocs";
}

/// The launcher's flag with this name ('_' counts as '-'); nullopt for a flag of the program.
/// @throws Error (usage) with a suggestion, for a name that is similar to a launcher's flag
inline std::optional<std::string_view> flag_named(std::string_view given) {
  constexpr std::size_t longest = 32;  // longer names are similar to no flag
  if (given.substr(0, 2) != "--" || given.size() > longest) {
    return std::nullopt;
  }
  std::string spelling(given);
  std::replace(spelling.begin(), spelling.end(), '_', '-');
  const auto exact = std::find(flag_names.begin(), flag_names.end(), spelling);
  if (exact != flag_names.end()) {
    return *exact;
  }
  const std::string_view nearest =
      is_short_for_workers(spelling) ? "--nproc-per-node" : nearest_name(spelling, flag_names, 2);
  if (!nearest.empty()) {
    throw_error(Errc::usage, "unknown flag {}; did you mean {}? (put the program's own flags of that name after --)",
                {given, nearest});
  }
  return std::nullopt;
}

inline constexpr int most_rank = 1000000000;

/// @throws Error (usage)
inline int number_of(std::string_view flag, std::string_view value, int most) {
  const std::optional<int> number = identity::parse_integer(value);
  if (!number || *number > most) {
    throw_error(Errc::usage, "{} is not a number from 0 to {}", {identity::quoted(flag, value), most});
  }
  return *number;
}

/// @throws Error (usage)
inline std::vector<std::string> wrapper_words(std::string_view value) {
  std::optional<std::vector<std::string>> words = command_words(value);
  if (!words || words->empty()) {
    throw_error(Errc::usage, "{} is no command: {}; give it as a shell would take it, like --wrap='valgrind -q --'",
                {identity::quoted("--wrap", value), words ? "it has no word" : "a quote in it has no end"});
  }
  return *std::move(words);
}

/// The field for a flag whose value is kept as text; null for another flag.
inline std::optional<std::string>* text_of_flag(Flags& flags, std::string_view flag) {
  return flag == "--nproc-per-node" ? &flags.node.nproc_per_node
         : flag == "--nnodes"       ? &flags.node.node_count
         : flag == "--node-rank"    ? &flags.node.node_rank
         : flag == "--master-addr"  ? &flags.node.master_addr
         : flag == "--master-port"  ? &flags.node.master_port
         : flag == "--log-dir"      ? &flags.log_dir
                                    : nullptr;
}

/// @throws Error (usage) for flags that contradict each other
inline void check_together(const Flags& flags) {
  if (flags.wrapped_rank && flags.wrapper.empty()) {
    throw_error(Errc::usage,
                "--wrap-rank={} says which rank is wrapped, and nothing says in what; add --wrap='COMMAND'",
                {*flags.wrapped_rank});
  }
  if (!flags.in_process) {
    return;
  }
  const char* const other = !flags.wrapper.empty()                           ? "--wrap"
                            : flags.log_dir                                  ? "--log-dir"
                            : flags.max_restarts != 0                        ? "--max-restarts"
                            : flags.min_ranks != 0                           ? "--min-ranks"
                            : flags.node.node_count.value_or("1") != "1"     ? "--nnodes"
                            : flags.node.nproc_per_node.value_or("1") != "1" ? "--nproc-per-node"
                                                                             : nullptr;
  if (other != nullptr) {
    throw_error(Errc::usage,
                "--in-process makes this process rank 0 of 1, without a launcher and without other workers: leave out "
                "{}, or --in-process",
                {other});
  }
}

}  // namespace detail

/// Splits a command line. If a flag occurs twice, the last value counts. Also removes the first "--".
/// @throws Error (usage) for a flag without its value, an invalid value, a contradiction between flags, and a name that
/// is similar to a launcher's flag
inline Flags parse_flags(identity::Arguments arguments) {
  Flags flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (i > 0 && argument == "--") {
      while (++i < arguments.size()) {
        flags.program.push_back(arguments[i]);
      }
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::optional<std::string_view> flag = i == 0 ? std::nullopt : detail::flag_named(argument.substr(0, equals));
    if (!flag) {
      if (i + 1 < arguments.size() && (argument == "-n" || argument == "-np") &&
          identity::parse_integer(arguments[i + 1])) {
        flags.mpirun_workers = format_text("{} {}", {argument, arguments[i + 1]});
      }
      flags.program.push_back(arguments[i]);
      continue;
    }
    if (*flag == "--help-launch" || *flag == "--in-process") {
      (*flag == "--help-launch" ? flags.help : flags.in_process) = true;
      continue;
    }
    std::string value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && std::string_view(arguments[i + 1]).substr(0, 2) != "--") {
      value = arguments[++i];
    }
    if (value.empty()) {
      throw_error(Errc::usage, "{} has no value; give it as {}=VALUE", {argument, *flag});
    }
    if (std::optional<std::string>* const text = detail::text_of_flag(flags, *flag)) *text = value;
    if (*flag == "--max-restarts") {
      flags.max_restarts = detail::number_of(*flag, value, most_restarts);
    }
    if (*flag == "--min-ranks") flags.min_ranks = detail::number_of(*flag, value, detail::most_rank);
    if (*flag == "--wrap") flags.wrapper = detail::wrapper_words(value);
    if (*flag == "--bind") flags.binding = binding_from(value);
    if (*flag == "--wrap-rank") flags.wrapped_rank = detail::number_of(*flag, value, detail::most_rank);
  }
  detail::check_together(flags);
  return flags;
}

/// For a program that an external launcher starts once for each rank.
/// @throws Error (usage) for a flag that only launch::PerNode supports
inline void refuse_launcher_flags(const std::vector<std::string>& arguments) {
  for (const std::span<const std::string_view> flags :
       {std::span<const std::string_view>(identity::worker_flags),
        std::span<const std::string_view>(identity::workerless_flags)}) {
    if (const std::string_view flag = identity::first_flag(arguments, flags); !flag.empty()) {
      throw_error(Errc::usage,
                  "{} is a flag of launch::PerNode, which starts its workers itself; this program is started once for "
                  "each rank by mpirun, srun, torchrun or a script: leave the flag out, put it after -- if it is the "
                  "program's own, or build the program with launch::Any",
                  {flag});
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
