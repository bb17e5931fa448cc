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

/// The page that --help-launch prints. @param program as the user called it
inline std::string help_text(std::string_view program) {
  const std::string name = excerpt(program.empty() ? std::string_view("PROGRAM") : program, 256);
  return format_text(
      "Usage: {} [launcher flags] [your flags]\n"
      "Example: {} --nproc-per-node=4 --epochs=3\n"
      "Your program does not see the launcher's flags; --flag=v, --flag v and underscores are the same.\n"
      "\n"
      "One node\n"
      "  --nproc-per-node=N|auto  workers to start (default 1); auto: one for each visible GPU if the program\n"
      "                           computes on GPUs, else one for each core that this process may use\n"
      "  --bind=HOW               where workers run. core: each on cores of its own; numa: each on a NUMA node;\n"
      "                           none: anywhere; auto (default): core if workers compute on the host and cores\n"
      "                           suffice, and near each worker's GPU if the system names its NUMA node\n"
      "  --log-dir=DIR            also writes each worker's output to DIR/rank-R.stdout and DIR/rank-R.stderr,\n"
      "                           that of the K-th restart to DIR/attempt-K; an elastic job of several nodes has\n"
      "                           a folder DIR/HOST for each host\n"
      "\n"
      "Several nodes (start the program once on each, with one DTRAIN_SECRET, or a file in DTRAIN_SECRET_FILE)\n"
      "  --nnodes=N               nodes of the job (default 1)\n"
      "  --node-rank=R            which of them this one is, from 0\n"
      "  --master-addr=HOST       the host of node 0\n"
      "  --master-port=P          the port of the job's store there (default 29500; one node: a free one)\n"
      "\n"
      "Failures and elastic jobs\n"
      "  --max-restarts=N         how often all workers are started again after one failed (default 0; several\n"
      "                           nodes: node 0's counts); not after exit code 2 or a signal to the job\n"
      "  --min-ranks=N            the job goes on with N ranks or more if workers are lost; for a program with\n"
      "                           dtrain::Elastic; --max-restarts is then how many each launcher replaces\n"
      "  --nnodes=MIN:MAX         nodes come and go, with --node-rank=0 on the one that stays, and any other\n"
      "                           number on the others; --min-ranks is by default the workers of MIN nodes\n"
      "\n"
      "Debugging\n"
      "  --in-process             starts nothing: this process is rank 0 of 1, for a debugger\n"
      "  --wrap='CMD ARGS --'     puts a command in front of each worker's, such as valgrind, numactl, perf,\n"
      "                           strace, or gdb: --wrap='gdb -batch -ex run -ex bt --args'; quotes as in a shell\n"
      "  --wrap-rank=R            in front of rank R alone (elastic: of this launcher's worker R)\n"
      "  --status[=PID]           starts nothing: prints what each rank is doing, of your jobs whose store is on\n"
      "                           this host, or of the one of this process (a launcher, or rank 0)\n"
      "  --help-launch            prints this page\n"
      "  --                       everything after it is the program's\n"
      "\n"
      "Each line of a worker is shown after '[rank] '; stdin goes to the node's first worker, or to --wrap-rank's.\n"
      "SIGINT and SIGTERM end the job on all nodes: workers that are left after DTRAIN_GRACE_SECONDS (default 30)\n"
      "are killed, 1 second after a second signal. A killed launcher takes its workers with it.\n",
      {name, name});
}

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
  bool status = false;                ///< --status: this process asks a job what it does
  std::optional<int> status_process;  ///< the process that hosts the job's store; nullopt: each of this host
  std::vector<std::string> program;   ///< the program's name and its own arguments, in order
  std::string mpirun_workers;         ///< "-n 4" or "-np 4" among them, which mpirun would take for itself; else empty
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
    if (i > 0 && argument.substr(0, equals) == identity::status_flag) {
      flags.status = true;
      if (equals != std::string_view::npos) {
        flags.status_process = detail::number_of(identity::status_flag, argument.substr(equals + 1), detail::most_rank);
      }
      continue;
    }
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
