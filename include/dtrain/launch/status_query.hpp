#pragma once
/// @file
/// print_statuses(): asks the jobs of this host what their ranks are doing.

#include <optional>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Prints on stdout what each rank is doing, of the job whose store `process` hosts, or of each job of this user whose
/// store is on this host. @returns the exit code: 1, with a sentence on stderr, if there is none, or none answers
/// Blocking: 2 s for each job at most.
int print_statuses(std::optional<int> process);

}  // namespace DTRAIN_NAMESPACE::launch

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/net/unix_socket.hpp"
#include "dtrain/rendezvous/server/status_listener.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// The processes that listen for queries. Source: proc_net(5); an abstract name is shown behind '@'.
inline std::vector<int> processes_with_status(std::string_view sockets) {
  const std::string name = std::string("@") + rendezvous::status_socket_prefix;
  std::vector<int> processes;
  for (std::size_t at = sockets.find(name); at != sockets.npos; at = sockets.find(name, at + 1)) {
    const std::string_view rest = sockets.substr(at + name.size());
    const std::optional<int> process = identity::parse_integer(rest.substr(0, rest.find_first_not_of("0123456789")));
    const bool is_known = process && std::find(processes.begin(), processes.end(), *process) != processes.end();
    if (process && !is_known) processes.push_back(*process);
  }
  return processes;
}

}  // namespace detail

DTRAIN_DEFINED int print_statuses(std::optional<int> process) {
  constexpr std::size_t most_bytes = std::size_t{16} << 20;
  std::vector<int> processes;
  if (process) {
    processes.push_back(*process);
  } else {
    processes = detail::processes_with_status(read_small_file("/proc/net/unix", most_bytes).value_or(""));
  }
  std::string problem =
      "no job has its store on this host; ask where the launcher of node 0 runs, or rank 0 if another launcher started "
      "it";
  bool has_answer = false;
  for (const int each : processes) {
    try {
      const Deadline deadline = Deadline::after(std::chrono::seconds(2));
      auto job = net::UnixConnection::connect(rendezvous::status_socket_name(each), deadline);
      std::string text;
      while (const std::optional<std::string> line = job.receive_text(deadline)) {
        append_text(text, "{}{}\n",
                    {text.empty() ? format_text("the job of process {}: ", {each}) : "", sanitize(*line)});
      }
      if (text.empty()) {
        problem = format_text("process {} does not answer: it is another user's", {each});
        continue;
      }
      has_answer = true;
      if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw_errno("printing what the ranks do");
    } catch (const Error& error) {
      const bool is_nobody = error.code() == std::error_code(ECONNREFUSED, std::generic_category());
      problem = is_nobody ? format_text(
                                "process {} hosts no job's store on this host; give the launcher's process, or rank "
                                "0's where another launcher has started the job",
                                {each})
                          : format_text("process {}: {}", {each, error.what()});
    } catch (const std::exception& error) {
      problem = format_text("process {}: {}", {each, error.what()});
    }
  }
  if (!has_answer) log(LogLevel::error, problem);
  return has_answer ? 0 : exit_code_exception;
}

}  // namespace DTRAIN_NAMESPACE::launch

#endif  // DTRAIN_DEFINITIONS
