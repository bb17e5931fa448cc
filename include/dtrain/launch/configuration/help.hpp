#pragma once
/// @file
/// Help text of the launcher's flags (--help-launch).

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

inline constexpr const char* help_text =
    "Launcher flags (taken out of the program's arguments; --flag=v, --flag v, underscores as well):\n"
    "  --nproc-per-node=N|auto  workers to start (default 1); auto: one for each visible GPU where the program\n"
    "                           computes on GPUs, else for each core this process may use\n"
    "  --nnodes=N               nodes of the job; start this program once on each of them (default 1)\n"
    "  --node-rank=R            which of them this one is, from 0\n"
    "  --master-addr=HOST       the host of node 0 (one node: not needed, the store listens at 127.0.0.1)\n"
    "  --master-port=P          the port of the job's store (one node: chosen by the system; several: 29500)\n"
    "  --max-restarts=N         how often all workers are started again after one failed (default 0; several nodes:\n"
    "                           node 0's counts); exit code 2 and a job ended by a signal are not tried again\n"
    "  --log-dir=DIR            also writes each worker's output to DIR/rank-R.stdout and DIR/rank-R.stderr, that of\n"
    "                           the K-th restart to DIR/attempt-K/rank-R.stdout and .stderr\n"
    "  --wrap='CMD ARGS --'     puts a command in front of each worker's, such as valgrind, numactl, perf, strace,\n"
    "                           or gdb: --wrap='gdb -batch -ex run -ex bt --args'; quotes as in a shell\n"
    "  --wrap-rank=R            in front of rank R alone\n"
    "  --in-process             starts nothing: this process is rank 0 of 1, for a debugger\n"
    "  --help-launch            prints this\n"
    "  --                       everything after it is the program's\n"
    "Several nodes share a secret: the same DTRAIN_SECRET, or a file that DTRAIN_SECRET_FILE names, on each of them.\n"
    "Every line of a worker is shown behind '[rank] '; stdin goes to the first worker of the node. SIGINT, SIGTERM,\n"
    "SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are forwarded; SIGINT and SIGTERM end the job on all "
    "nodes:\n"
    "workers that are still there DTRAIN_GRACE_SECONDS later (default 30) are killed, 1 second after a second signal.\n"
    "A launcher that is killed takes its workers with it, but not what these have started; as PID 1 of a container it\n"
    "takes everything.\n";

}  // namespace DTRAIN_NAMESPACE::launch
