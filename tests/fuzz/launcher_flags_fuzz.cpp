// A command line from anywhere: the launcher takes its flags and passes on the rest in order, or says what is wrong.

#include "dtrain/launch/configuration/flags.hpp"

#include "fuzz/fuzz.hpp"
#include "fuzz/identity_invariants.hpp"

namespace launch = dtrain::launch;

std::vector<std::string> fuzz::seeds() {
  return {"--nproc-per-node=4\n--epochs=3",
          "--nproc_per_node\n4\n--\n--nnodes=2",
          "--nnodes\n--node-rank=1",
          "--nprocs-per-node=4",
          "--log-dir=/x\n--help-launch",
          "--max-restarts=2\na\nb",
          "--master-addr=h\n--master_port=1",
          "--wrap='a b' \"c\\$\" --\n--wrap-rank=1",
          "--in-process\n--wrap=a"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> arguments{"program"};
  std::string_view text = fuzz::text_of(data, size);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    arguments.emplace_back(text.substr(0, std::min(end, text.find('\0'))));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) {
    pointers.push_back(argument.c_str());
  }
  try {
    const launch::Flags flags = launch::parse_flags(pointers);
    fuzz::require(!flags.program.empty() && flags.program.front() == "program", "the program keeps its name");
    auto next = arguments.begin();
    for (const std::string& kept : flags.program) {
      next = std::find(next, arguments.end(), kept);
      fuzz::require(next != arguments.end(), "what is passed on was given, in this order");
      ++next;
    }
    for (const auto& value : {flags.node.node_count, flags.node.node_rank, flags.node.master_addr,
                              flags.node.master_port, flags.node.nproc_per_node, flags.log_dir}) {
      fuzz::require(!value || !value->empty(), "a flag that is taken has a value");
    }
    fuzz::require(!flags.wrapped_rank || !flags.wrapper.empty(), "a rank is wrapped in something");
  } catch (const dtrain::Error& error) {
    fuzz::require(error.code() == make_error_code(dtrain::Errc::usage), "the only error is one of usage");
    fuzz::require(*error.what() != '\0', "an error has a sentence");
  }
  return 0;
}
