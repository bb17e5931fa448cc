#!/usr/bin/env python3
"""Several hosts on this machine: namespaces of their own (network, host name, processes, mounts), joined by a switch.

  virtual_cluster.py run [--hosts=2] [--rate=1gbit] [--each] -- COMMAND...
      sets a cluster up, runs COMMAND on host0 (--each: on every host at once; {host} is its number), takes it down
  virtual_cluster.py up [--hosts=2] [--rate=1gbit]
      prints one line of JSON (cluster, hosts, addresses, processes); the cluster lasts until its stdin ends
  virtual_cluster.py exec CLUSTER HOST -- COMMAND...    runs COMMAND on host0, host1, ... or, for tests, on the switch
  virtual_cluster.py counters CLUSTER                   prints what each host's eth0 has sent and received, as JSON
  virtual_cluster.py cut CLUSTER HOST                   unplugs a host: from now on nothing comes and nothing arrives
  virtual_cluster.py mend CLUSTER HOST                  plugs it in again
  virtual_cluster.py sweep                              removes the folders of clusters that were killed

hostN is 10.77.0.N+1 on eth0 and has its name in /etc/hosts; --rate is what its link takes each way (tc's words). /tmp and
everything else on disk are shared, /dev/shm and the boot's other memory are not. Inside, $VIRTUAL_CLUSTER is CLUSTER, and
$VIRTUAL_CLUSTER/rsh HOST COMMAND reaches another host, as ssh would: mpirun --mca plm_rsh_agent $VIRTUAL_CLUSTER/rsh.

Needs iproute2, and root or user namespaces; where that is missing it says so and exits with 77. No namespace has a
name: the kernel removes them, with their links, when their last process ends, and a host's processes end with its
first, which ends with the cluster's, even one that is killed with -9.
"""

import argparse
import ctypes
import fcntl
import json
import os
import pathlib
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import host_door

CANNOT = 77
SWITCH = "switch"
PREFIX = "dtrain-cluster-"
NEW_MOUNTS, NEW_NAMES, NEW_MEMORY, NEW_USERS, NEW_PROCESSES, NEW_NETWORK = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # fmt: skip
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """What this machine does not allow, in words."""


def check(result, doing):
    if result != 0:
        raise NotPermitted(f"{doing}: {os.strerror(ctypes.get_errno())}")


def command(*words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def fork_into(namespaces):
    """os.fork() whose child is in new namespaces: the first process of one of processes. unshare() would do it once."""
    clone = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
    if clone is None:
        raise NotPermitted(f"the number of clone(2) on {platform.machine()} is not known here")
    process = libc.syscall(clone, namespaces | signal.SIGCHLD, 0, 0, 0, 0)
    check(min(process, 0), "a namespace of processes")
    return process


def own_mounts():
    command("mount", "--make-rprivate", "/")
    command("mount", "-t", "sysfs", "sysfs", "/sys")


def limit(interface, rate):
    """What the interface sends; a queue of 50 ms is an ordinary switch's."""
    if rate:
        command("tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")


class Cluster:
    """The switch is this process; each host is a child, the first process of its own."""

    def __init__(self, hosts, rate):
        for program in ["ip", "tc", "mount"]:
            if shutil.which(program) is None:
                raise NotPermitted(f"there is no program {program} (the package iproute2 has ip and tc)")
        sweep()
        self.names = [f"host{number}" for number in range(hosts)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(hosts)]
        self.rate = rate
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.processes = []
        self.lifelines = []  # a host ends when its end of the pair is closed
        try:
            self.lock = open(self.folder / "lock", "w")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            self.write_files()
            self.become_switch()
            for number in range(hosts):
                self.add_host(number)
        except BaseException:
            self.down()
            raise

    def write_files(self):
        lines = ["127.0.0.1 localhost"] + [f"{a} {n}" for a, n in zip(self.addresses, self.names)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        rsh = self.folder / "rsh"
        here = shlex.quote(str(pathlib.Path(__file__).resolve()))
        rsh.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {here} rsh {self.folder} "$@"\n')
        rsh.chmod(0o755)

    def become_switch(self):
        user, group = os.geteuid(), os.getegid()
        own_users = NEW_USERS if user != 0 else 0
        check(libc.unshare(own_users | NEW_NETWORK | NEW_MOUNTS), "a network namespace needs root or user namespaces")
        if own_users:
            pathlib.Path("/proc/self/setgroups").write_text("deny")
            pathlib.Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            pathlib.Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        own_mounts()
        command("ip", "link", "add", "name", SWITCH, "type", "bridge")
        command("ip", "link", "set", SWITCH, "up")
        self.door = host_door.open_door(str(self.folder / SWITCH))

    def add_host(self, number):
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = fork_into(NEW_PROCESSES)
        if process == 0:
            own.close()
            self.door.close()
            for lifeline in self.lifelines:
                lifeline.close()
            host_door.leave_after(lambda: self.be_host(number, theirs))
        theirs.close()
        self.processes.append(process)
        self.lifelines.append(own)
        name = self.names[number]
        self.wait_for(own)  # its network is there
        command("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", process)
        command("ip", "link", "set", name, "master", SWITCH, "up")
        limit(name, self.rate)
        own.send(b"linked")
        self.wait_for(own)  # it is open

    @staticmethod
    def wait_for(lifeline):
        answer = lifeline.recv(4096).decode()
        if answer != "ok":
            raise NotPermitted(answer or "a host ended before it was there")

    def be_host(self, number, lifeline):
        """The first process of a host: it takes in what has lost its parent, and lets guests in."""
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for each in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            signal.signal(each, signal.SIG_IGN)  # a terminal's Ctrl-C is for the guests
        try:
            check(libc.unshare(NEW_NETWORK | NEW_NAMES | NEW_MEMORY | NEW_MOUNTS), "a host's namespaces")
            lifeline.send(b"ok")
            if not lifeline.recv(64):
                return
            socket.sethostname(self.names[number])
            own_mounts()
            command("mount", "-t", "proc", "proc", "/proc")
            command("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
            command("mount", "--bind", self.folder / "hosts", "/etc/hosts")
            command("ip", "link", "set", "lo", "up")
            command("ip", "link", "set", "eth0", "addrgenmode", "none")  # no IPv6: its chatter would be counted
            command("ip", "address", "add", self.addresses[number] + "/24", "dev", "eth0")
            command("ip", "link", "set", "eth0", "up")
            limit("eth0", self.rate)
            door = host_door.open_door(str(self.folder / self.names[number]))
        except (NotPermitted, OSError) as error:
            lifeline.send(str(error).encode())
            return
        lifeline.send(b"ok")
        host_door.serve(door, owner=lifeline)

    def facts(self):
        return {"cluster": str(self.folder), "hosts": self.names, "addresses": self.addresses,
                "processes": self.processes}  # fmt: skip

    def down(self):
        for lifeline in self.lifelines:
            lifeline.close()
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        for process in self.processes:
            try:
                os.waitpid(process, 0)
            except ChildProcessError:
                pass  # reaped while the switch was serving
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep():
    """A cluster that lives holds the lock in its folder; only the folder of one that was killed is left."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            with open(folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            process = folder.name.removeprefix(PREFIX).split("-")[0]
            if pathlib.Path("/proc", process).exists():
                continue  # it is only being made
        except OSError:
            continue
        shutil.rmtree(folder, ignore_errors=True)


def on_host(cluster, host, argv, standard=(0, 1, 2)):
    door = pathlib.Path(cluster, host)
    return host_door.visit(str(door), argv, {**os.environ, "VIRTUAL_CLUSTER": str(cluster)}, standard)


def run(options):
    cluster = Cluster(options.hosts, options.rate)
    codes = {}
    try:
        guests = []
        for number, host in enumerate(cluster.names if options.each else cluster.names[:1]):
            argv = [word.replace("{host}", str(number)) for word in options.command]
            guest = os.fork()
            if guest == 0:
                cluster.door.close()
                host_door.leave_after(lambda: on_host(cluster.folder, host, argv))
            guests.append(guest)

        def is_over(ended):
            codes.update(ended)
            return all(guest in codes for guest in guests)

        for number in host_door.FORWARDED:  # a terminal tells the guests, too; others tell only this process
            signal.signal(number, lambda number, _: [os.kill(g, number) for g in guests if g not in codes])
        host_door.serve(cluster.door, is_over=is_over)
        return max(codes[guest] for guest in guests)
    finally:
        cluster.down()


def up(options):
    cluster = Cluster(options.hosts, options.rate)
    try:
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]:
            signal.signal(number, lambda *_: sys.exit(0))
        print(json.dumps(cluster.facts()), flush=True)
        host_door.serve(cluster.door, owner=0)
        return 0
    finally:
        cluster.down()


def counters(options):
    """Bytes and packets as the kernel counts them: with the headers of Ethernet, IP and TCP."""
    found = {}
    names = ["tx_bytes", "rx_bytes", "tx_packets", "rx_packets", "tx_dropped", "rx_dropped"]
    for door in sorted(pathlib.Path(options.cluster).glob("host[0-9]*")):
        with tempfile.TemporaryFile() as output:
            paths = [f"/sys/class/net/eth0/statistics/{name}" for name in names]
            code = on_host(options.cluster, door.name, ["cat", *paths], (0, output.fileno(), 2))
            if code != 0:
                return code
            output.seek(0)
            found[door.name] = dict(zip(names, map(int, output.read().split())))
    print(json.dumps(found))
    return 0


def rsh(options):
    """ssh's way: what the words make together is a shell's."""
    return on_host(options.cluster, options.host, ["/bin/sh", "-c", " ".join(options.command)])


def link(state):
    """At the switch: the host sees a cable without a signal."""
    return lambda options: on_host(options.cluster, SWITCH, ["ip", "link", "set", options.host, state])


def execute(options):
    return on_host(options.cluster, options.host, options.command)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work in [("run", run), ("up", up), ("exec", execute), ("rsh", rsh), ("counters", counters),
                       ("cut", link("down")), ("mend", link("up")), ("sweep", lambda _: sweep())]:  # fmt: skip
        words = commands.add_parser(name)
        words.set_defaults(work=work)
        if name in ["run", "up"]:
            words.add_argument("--hosts", type=int, default=2, choices=range(1, 65), metavar="N")
            words.add_argument("--rate", default="")
        elif name != "sweep":
            words.add_argument("cluster")
        if name == "run":
            words.add_argument("--each", action="store_true")
        if name in ["exec", "rsh", "cut", "mend"]:
            words.add_argument("host")
        if name in ["run", "exec", "rsh"]:
            words.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if hasattr(options, "command"):
        if options.command[:1] == ["--"]:
            del options.command[0]
        if not options.command:
            parser.error("there is no command to run")
    try:
        return options.work(options)
    except NotPermitted as problem:
        print(f"no virtual cluster here: {problem}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
