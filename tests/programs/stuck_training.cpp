// A training in which rank 1 stops taking part before or in step 50, as its first argument says.
//   stuck_training FAULT [hierarchical]
//   read                 reads from a pipe that nobody writes to
//   spin                 computes for ever
//   stop                 stops itself by SIGSTOP
//   kill                 is killed
//   throw                throws an exception
//   barrier              calls a barrier that the others do not call
//   backward             sleeps in the backward pass, with one of two gradients ready
//   leave                returns from the function
//   early                throws an exception in step 3 already, before a status is sent
//   nan                  has a NaN in the gradient of 'bias' in step 15, and trains on
//   optimizer            leaves out the update of step 9
//   slow                 computes 26 ms in each step, the others 20 ms, and they wait for it in an all_reduce
// Before it, rank 1 waits until the job's store shows it before step 50, and the others in that step. Then it prints
// "rank 1 comes to step 50".

#include <algorithm>
#include <array>
#include <dtrain/rendezvous/server/status_listener.hpp>
#include <limits>
#include <optional>

#include "programs/prelude.hpp"

namespace {

struct Model {
  std::vector<float> weight = std::vector<float>(100), weight_gradient = std::vector<float>(100);
  std::vector<float> bias = std::vector<float>(10), bias_gradient = std::vector<float>(10);

  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(weight.data(), {100}), dtrain::tensor_view(weight_gradient.data(), {100})},
            {"bias", dtrain::tensor_view(bias.data(), {10}), dtrain::tensor_view(bias_gradient.data(), {10})}};
  }
};

[[noreturn]] void sleep_for_ever() {
  for (;;)
    std::this_thread::sleep_for(std::chrono::hours(1));
}

void read_for_ever() {
  std::array<int, 2> ends{};
  char byte = 0;
  if (::pipe(ends.data()) == 0) static_cast<void>(!::read(ends[0], &byte, 1));
}

/// What the store that process `host` hosts shows of the ranks: "" if it does not answer.
std::string shown_by(pid_t host) {
  std::string text;
  try {
    const auto deadline = dtrain::Deadline::after(std::chrono::seconds(2));
    auto store = dtrain::net::UnixConnection::connect(dtrain::rendezvous::status_socket_name(host), deadline);
    while (const std::optional<std::string> line = store.receive_text(deadline))
      text += *line + '\n';
  } catch (const dtrain::Error&) {  // it is not the host, or does not listen yet
    text.clear();
  }
  return text;
}

/// Returns once the store, of this rank's parent or of rank 0, shows one line for rank 1 and one for all others.
void wait_until_shown(pid_t rank_0) {
  const auto deadline = dtrain::Deadline::after(std::chrono::seconds(60));
  for (bool is_shown = false; !is_shown && !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const pid_t host : {::getppid(), rank_0}) {
      const std::string text = shown_by(host);
      is_shown = is_shown ||
                 (text.find("step 49: between steps") != text.npos && text.find("step 50: in finish()") != text.npos &&
                  std::count(text.begin(), text.end(), '\n') == 3);
    }
  }
}

/// Makes steps until the job is ended. Rank 1 is slow, and the collective in front of the backward pass hides it.
template <class Policy>
int train_slowly(const dtrain::ProcessGroup<Policy>& group) {
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(group.rank() == 1 ? 26 : 20));
    static_cast<void>(group.all_reduce(1.0F));
    ddp.backward([](dtrain::Ready ready) {
      ready(1);
      ready(0);
    });
    model.weight.front() += 1;
  }
}

template <class Policy>
int train(const dtrain::ProcessGroup<Policy>& group, const std::string& fault) {
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
  const std::vector<pid_t> processes = group.all_gather(::getpid());
  for (int step = 1; step <= 60; ++step) {
    if (fault == "early" && step == 3 && group.rank() == 1) throw std::runtime_error("an early mistake");
    const bool is_due = step == 50 && group.rank() == 1 && fault != "nan";
    if (is_due) {
      wait_until_shown(processes.front());
      std::printf("rank 1 comes to step 50\n");
      if (fault == "read") read_for_ever();
      if (fault == "stop") std::raise(SIGSTOP);
      if (fault == "kill") std::raise(SIGKILL);
      if (fault == "throw") throw std::runtime_error("a mistake");
      if (fault == "barrier") group.barrier();
      if (fault == "leave") return 0;
      for (volatile bool spins = fault == "spin"; spins;)
        continue;
    }
    std::fill(model.bias_gradient.begin(), model.bias_gradient.end(), 0.0F);
    if (fault == "nan" && step == 15 && group.rank() == 1)
      model.bias_gradient[7] = std::numeric_limits<float>::quiet_NaN();
    ddp.backward([&](dtrain::Ready ready) {
      ready(1);
      if (is_due && fault == "backward") sleep_for_ever();
      ready(0);
    });
    if (fault != "optimizer" || step != 9 || group.rank() != 1) model.weight.front() += 1;
  }
  return 0;
}

template <class Topology>
int run(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, Topology>;
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    if (arguments.size() > 1 && std::string(arguments[1]) == "slow") return train_slowly(group);
    return train(group, arguments.size() > 1 ? arguments[1] : "");
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return std::string(argv[argc - 1]) == "hierarchical" ? run<dtrain::topology::Hierarchical<>>(argc, argv)
                                                       : run<dtrain::topology::Flat>(argc, argv);
}
