"""Runs a shell command for so long at most: within.py SECONDS COMMAND

At the limit it prints what every process of the command does, its threads' backtraces if there is a debugger, kills
them all, and ends with exit code 124; otherwise with the command's. What the command leaves running is killed, too.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
DEBUGGER_SECONDS = 15
SHELL_TOOLS = ("bash", "sh", "tee", "timeout")
MOST_LINES = 600  # of a process's backtraces
MOST_COLUMNS = 220


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        return f"({error.strerror})"


def descendants():
    """Process ids of all that this program has started, and of what they have."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = read(f"/proc/{name}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] != "Z":
            parents[int(name)] = int(fields[1])
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def print_threads(process):
    command = read(f"/proc/{process}/cmdline").replace("\0", " ").strip()
    print(f"-------- process {process}: {command[:200]}")
    threads = f"/proc/{process}/task"
    for thread in sorted(os.listdir(threads), key=int) if os.path.isdir(threads) else []:
        folder = f"{threads}/{thread}"
        fields = read(f"{folder}/stat").rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
        print(
            f"{thread} {read(folder + '/comm'):<16} {fields[0] if fields else '?'} {ticks / os.sysconf('SC_CLK_TCK'):7.2f} s "
            f"of a core, in {read(folder + '/wchan')}, system call {' '.join(read(folder + '/syscall').split()[:3])}"
        )


def debugger(process):
    """The command that prints the backtraces of a process."""
    if shutil.which("eu-stack"):
        return ["eu-stack", "-p", str(process), "-n", "24"]
    for name, further in (("gdb", []), ("cuda-gdb", ["--cuda-use-lockfile=0"])):
        if shutil.which(name):
            return [name, *further, "-nx", "-batch", "-p", str(process), "-ex", "thread apply all bt 16"]
    return None


def print_backtraces(processes):
    running = []
    for process in processes:
        command = debugger(process)
        if command is None:
            print("there is no eu-stack, gdb or cuda-gdb: no backtraces")
            return
        output = tempfile.TemporaryFile("w+", errors="replace")
        running.append((process, output, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)))
    end = time.monotonic() + DEBUGGER_SECONDS
    for process, output, child in running:
        try:
            child.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        output.seek(0)
        print(f"-------- backtraces of process {process}, exit code {child.returncode}:")
        for line in output.read().splitlines()[:MOST_LINES]:
            print(line[:MOST_COLUMNS])


def kill_all():
    for _ in range(5):  # what a process has started meanwhile
        for process in descendants():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                return


def main():
    limit, command = float(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans are found, too
    started = subprocess.Popen(["bash", "-c", command])
    try:
        code = started.wait(limit)
        code = code if code >= 0 else 128 - code
    except subprocess.TimeoutExpired:
        code = 124
        print(f"-------- the time limit of {limit:g} s is over", flush=True)
        processes = descendants()
        for process in processes:
            print_threads(process)
        print_backtraces([process for process in processes if read(f"/proc/{process}/comm") not in SHELL_TOOLS])
        sys.stdout.flush()
    kill_all()
    return code


if __name__ == "__main__":
    sys.exit(main())
