#!/usr/bin/env python3
"""Runs the jobs of examples/azure_ml on this machine as Azure ML would, and evicts a node of each.

  azure_jobs.py ROOT PROGRAMS [MPIRUN]

PROGRAMS is the folder of the built examples, which stands for the image's /usr/local/bin. Each process gets the command of
the job file and the variables that Azure ML sets for the job's type. Two nodes are two values of DTRAIN_HOST_ID and two
addresses of the loopback interface. mpirun starts all ranks here, so that MPI's variables of two nodes are tried with the
program for Gloo. A job runs three times: undisturbed; until a node is evicted; and again from the checkpoint in its output.
Both trainings must end with the same loss. Needs no network and no package of Azure's. Exit code 77: nothing ran.
"""

import errno
import fcntl
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

from job_files import AZURE_DISTRIBUTIONS, Failure, azure_job, require

DEADLINE = 240  # seconds that one run of a job may take on a loaded machine
EPOCHS, STEPS_PER_EPOCH = 40, 2
PAGE = 4096  # what the pipe of an evicted job takes: less than the output of all epochs


# ---- the job files

def image_programs(dockerfile):
    """The programs that the image has in /usr/local/bin."""
    text = dockerfile.read_text().replace("\\\n", " ")
    require(len(re.findall(r"^FROM mcr\.microsoft\.com/azureml/\S+$", text, re.MULTILINE)) == 1,
            f"{dockerfile} is not FROM one base image of Azure ML")
    built = re.search(r"cmake --build /build --target ([\w ]+)&&", text)
    moved = re.search(r"mv ([\w/ ]+) /usr/local/bin", text)
    require(built and moved, f"{dockerfile} does not build targets and move them to /usr/local/bin")
    require([f"/build/examples/{name}" for name in built[1].split()] == moved[1].split(),
            f"{dockerfile} builds other programs than it moves")
    return built[1].split()


class Job:
    """A job file, and what Azure ML does with it."""

    def __init__(self, path):
        self.name = path.name
        fields, distribution = azure_job(path.read_text(), path.name)
        self.type = distribution and distribution["type"]
        build = fields["environment"]["build"]
        dockerfile = path.parent / build["path"] / build["dockerfile_path"]
        require(dockerfile.is_file(), f"{path}: the file {dockerfile} does not exist")
        self.command = fields["command"]
        self.program = self.command.split()[0]
        require(self.program in image_programs(dockerfile), f"{path}: {dockerfile} does not build {self.program}")
        self.inputs = {name: str(value) for name, value in fields["inputs"].items()}
        self.variables = fields["environment_variables"]
        self.nodes = fields["resources"]["instance_count"]
        count = distribution and distribution.get("worker_count", distribution.get("process_count_per_instance"))
        if self.type == "tensorflow":
            require(count == self.nodes, f"{path}: Azure ML starts one worker on each of {self.nodes} nodes, not {count}")
            count = 1
        # Without a distribution Azure ML starts one process: dtrain's launcher, which starts the ranks.
        self.per_node = int(count or re.search(r"--nproc-per-node=(\d+) ", self.command)[1])

    def shell_command(self, inputs, outputs):
        require(inputs.keys() <= self.inputs.keys(), f"{self.name} has no input of {sorted(inputs)}")
        values = {f"inputs.{name}": value for name, value in (self.inputs | inputs).items()}
        values |= {f"outputs.{name}": value for name, value in outputs.items()}
        named = re.findall(r"\$\{\{(.*?)\}\}", self.command)
        require(sorted(named) == sorted(values), f"{self.name}: the command names {named}, the file has {sorted(values)}")
        text = re.sub(r"\$\{\{(.*?)\}\}", lambda match: values[match[1]], self.command)
        require(re.fullmatch(r"[\w/.= -]+", text), f"{self.name}: the command is more than a program and flags: {text}")
        return text


# ---- this machine

def address_of(node):
    """A loopback address of this process's own: ports that Azure ML fixes are then free at it."""
    process = os.getpid()
    return f"127.{1 + process % 250}.{process // 250 % 250}.{1 + node}"


def port_at(address, usual):
    """`usual`, or a free port if another program listens there at all addresses."""
    for port in (usual, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
                return listener.getsockname()[1]
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not port:
                    raise
    raise Failure("no port is free")


def write_data(folder):
    """A small data set in the files of Fashion-MNIST."""
    folder.mkdir()
    numbers = random.Random(1)
    for part, count in (("train", 256 * STEPS_PER_EPOCH), ("t10k", 100)):
        for name, extents, content in (
                ("images-idx3", (count, 28, 28), numbers.randbytes(count * 28 * 28)),
                ("labels-idx1", (count,), bytes(numbers.randrange(10) for _ in range(count)))):
            header = struct.pack(f">4B{len(extents)}I", 0, 0, 8, len(extents), *extents)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + content))


class Start:
    """Starts every rank of a job; each subclass sets the variables of one type. `mpirun` None: by hand."""

    def __init__(self, job, mpirun=None):
        self.job, self.mpirun = job, mpirun
        self.world = job.nodes * job.per_node
        self.address = address_of(0)
        self.port = port_at(self.address, 2222 if job.type == "tensorflow" else 6105)

    def of_rank(self, rank):
        """The variables of one rank, and the line in which rank 0 says who it is (None: it is not looked for)."""
        node, local = divmod(rank, self.job.per_node)
        azure = {"AZUREML_NODE_COUNT": str(self.job.nodes), "AZ_BATCH_MASTER_NODE": f"{self.address}:6000",
                 "DTRAIN_HOST_ID": f"node-{node}"}
        if self.job.type == "pytorch":
            return azure | {"RANK": str(rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(local),
                            "NODE_RANK": str(node), "MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        if self.job.type == "tensorflow":
            workers = [f"{address_of(index)}:{self.port}" for index in range(self.job.nodes)]
            return azure | {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "environment": "cloud",
                                                     "task": {"type": "worker", "index": rank}})}
        if self.job.type == "mpi":
            azure |= {"AZ_BATCHAI_MPI_MASTER_NODE": self.address}
            azure |= {} if self.port == 6105 else {"MASTER_PORT": str(self.port)}
            if self.mpirun:  # all on this machine: one node
                return {name: value for name, value in azure.items() if name != "DTRAIN_HOST_ID"} | {"AZUREML_NODE_COUNT": "1"}
            return azure | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(self.world),
                            "OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_NODE_RANK": str(local),
                            "OMPI_COMM_WORLD_LOCAL_SIZE": str(self.job.per_node)}
        return {}

    def identity(self):
        """What rank 0 says of itself, without which of it is a guess."""
        source = {"pytorch": "RANK and WORLD_SIZE", "tensorflow": "tf_config", "mpi": "openmpi"}[self.job.type]
        nodes, local = (1, self.world) if self.mpirun else (self.job.nodes, self.job.per_node)
        return (f"dtrain: identity from {source}: rank 0 of {self.world}, local rank 0 of {local}, node 0 of {nodes}, "
                f"store at {self.address}:{self.port}")

    def processes(self, command, logs, programs):
        """Starts them: `logs`/RANK.out, RANK.err and RANK.pid are what each rank writes, and its process id."""
        inherited = {name: os.environ[name] for name in ("HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
        inherited["PATH"] = f"{programs}:{os.environ['PATH']}"
        inherited |= self.job.variables

        def script(rank):
            return f'echo $$ >"{logs}/{rank}.pid"; exec >"{logs}/{rank}.out" 2>"{logs}/{rank}.err" {command}'

        if self.mpirun:
            as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            arguments = [self.mpirun, "--oversubscribe", "-n", str(self.world), "bash", "-c", script("$OMPI_COMM_WORLD_RANK")]
            with open(logs / "mpirun.err", "wb") as errors:
                return [subprocess.Popen(arguments, env=inherited | self.of_rank(0) | as_root, stdin=subprocess.DEVNULL,
                                         stdout=errors, stderr=errors)]
        return [subprocess.Popen(["bash", "-c", script(rank)], env=inherited | self.of_rank(rank), stdin=subprocess.DEVNULL)
                for rank in range(self.world if self.job.type else 1)]


class Run:
    """One run of a job in a folder of its own. `with`: no process of it is left."""

    def __init__(self, start, command, logs, programs, evicted=False):
        self.logs, self.pipe = logs, None
        self.deadline = time.monotonic() + DEADLINE
        logs.mkdir()
        if evicted:
            self.pipe = self.small_pipe(logs / "0.out")
        self.started = start.processes(command, logs, programs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            process.kill()  # without effect on one that has ended
            process.wait()
        for path in self.logs.glob("*.pid"):  # ranks outlive an mpirun that is killed
            try:
                rank = int(path.read_text())
                if str(self.logs.parent).encode() in pathlib.Path(f"/proc/{rank}/cmdline").read_bytes():
                    os.kill(rank, signal.SIGKILL)
            except (ProcessLookupError, FileNotFoundError, ValueError):
                pass
        if self.pipe is not None:
            os.close(self.pipe)

    @staticmethod
    def small_pipe(path):
        """A pipe with room for one page, which nobody reads: rank 0 stops when it is full, however fast this machine is."""
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        size = fcntl.fcntl(pipe, getattr(fcntl, "F_SETPIPE_SZ", 1031), PAGE)
        os.write(pipe, b"\n" * (size - PAGE))
        return pipe

    def read(self, name):
        path = self.logs / name
        return path.read_text(errors="replace") if path.is_file() else ""

    def what_it_said(self):
        texts = {path.name: self.read(path.name) for path in sorted(self.logs.iterdir()) if path.suffix in (".out", ".err")}
        return "\n".join(f"---- {self.logs.name}/{name}\n{text[-3000:]}" for name, text in texts.items() if text)

    def wait_until(self, what, condition):
        while not condition():
            require(time.monotonic() < self.deadline, f"after {DEADLINE} s: not {what}\n{self.what_it_said()}")
            time.sleep(0.02)

    def ended(self):
        """Whether all have; what rank 0 writes into the pipe meanwhile is read."""
        if self.pipe is not None:
            try:
                while os.read(self.pipe, 65536):
                    pass
            except BlockingIOError:
                pass
        return all(process.poll() is not None for process in self.started)

    def codes(self):
        self.wait_until("ended", self.ended)
        return [process.returncode for process in self.started]

    def require_success(self):
        codes = self.codes()
        require(not any(codes), f"exit codes {codes} in place of 0\n{self.what_it_said()}")

    def waiting_bytes(self):
        return struct.unpack("i", fcntl.ioctl(self.pipe, termios.FIONREAD, b"\0" * 4))[0]

    def evict(self, ranks):
        for rank in ranks:
            self.wait_until(f"a process id of rank {rank}", lambda rank=rank: self.read(f"{rank}.pid").endswith("\n"))
        for rank in ranks:
            os.kill(int(self.read(f"{rank}.pid")), signal.SIGKILL)


def say(text):
    print(text, flush=True)


def try_job(start, title, folder, data, programs):
    """Undisturbed, evicted, and again."""
    folder.mkdir()
    whole, disturbed = folder / "whole", folder / "disturbed"

    def command(output):
        output.mkdir(exist_ok=True)
        return start.job.shell_command({"data": str(data), "epochs": str(EPOCHS)}, {"checkpoints": str(output)})

    with Run(start, command(whole), folder / "undisturbed", programs) as run:
        run.require_success()
        first_output, errors = run.read("0.out"), run.read("0.err")
    require(f"test images, ranks: {start.world}\n" in first_output, f"not {start.world} ranks:\n{first_output}")
    files = sorted(path.name for path in whole.iterdir())
    require(len(files) == 1, f"one checkpoint should lie in the output: {files}")
    checkpoint = files[0]
    if start.job.type is None:  # the launcher's ranks; tests of elastic jobs take workers away
        with Run(start, command(whole), folder / "again", programs) as run:
            run.require_success()
            last_output = run.read("0.out")
        require(f"going on after step {EPOCHS * STEPS_PER_EPOCH}\n" in last_output, f"it did not go on:\n{last_output}")
        say(f"{title}: {start.world} ranks; started again, it goes on from its checkpoint")
        return
    identity = re.sub(r" \(a guess[^)]*\)", "", errors)
    require(start.identity() in identity, f"rank 0 does not say {start.identity()!r}:\n{errors}")

    with Run(start, command(disturbed), folder / "evicted", programs, evicted=True) as run:
        run.wait_until("a checkpoint, and output of an epoch after it",
                       lambda: (disturbed / checkpoint).exists() and run.waiting_bytes() > PAGE // 2)
        require(all(process.poll() is None for process in run.started), f"ended before its node went\n{run.what_it_said()}")
        gone = range(start.world - start.job.per_node, start.world)
        run.evict(gone)
        codes = run.codes()
        require(all(codes), f"exit codes {codes}: a process went on without its peer\n{run.what_it_said()}")

    with Run(start, command(disturbed), folder / "resumed", programs) as run:
        run.require_success()
        last_output = run.read("0.out")
    match = re.search(r"^going on from (\S+), after step (\d+)$", last_output, re.MULTILINE)
    require(match and match[1] == str(disturbed / checkpoint), f"it did not go on from the checkpoint:\n{last_output}")
    require(0 < int(match[2]) < EPOCHS * STEPS_PER_EPOCH, f"it went on from step {match[2]}:\n{last_output}")
    require(f"test images, ranks: {start.world}\n" in last_output, f"not {start.world} ranks:\n{last_output}")
    if start.mpirun:  # on one host sums have the same bits whatever the step that a run begins with
        require((whole / checkpoint).read_bytes() == (disturbed / checkpoint).read_bytes(),
                "the checkpoint of the evicted job is not that of the undisturbed one")
    losses = [float(re.search(r"^training loss +([\d.]+)$", output, re.MULTILINE)[1]) for output in (first_output, last_output)]
    require(abs(losses[0] - losses[1]) < 0.002, f"training losses of {losses[0]} undisturbed, {losses[1]} evicted\n{last_output}")
    say(f"{title}: {start.world} ranks; node evicted, exit codes {codes}; went on from step {match[2]} to the same loss")


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    folder, programs = pathlib.Path(sys.argv[1]) / "examples" / "azure_ml", pathlib.Path(sys.argv[2]).resolve()
    mpirun = shutil.which(sys.argv[3]) if len(sys.argv) == 4 and sys.argv[3] else None
    jobs = {path.stem: Job(path) for path in sorted(folder.glob("*.yml"))}
    types = [job.type or "" for job in jobs.values()]
    require(sorted(types) == sorted(name or "" for name in AZURE_DISTRIBUTIONS), f"{folder} has jobs of the types {types}")
    by_hand = Job(folder / "mpi.yml")
    by_hand.command = by_hand.command.replace("fashion_mnist_mpi", jobs["pytorch"].program)
    by_hand.program = jobs["pytorch"].program
    starts = [(f"{job.name}{' through mpirun' if job.type == 'mpi' else ''}", Start(job, mpirun if job.type == "mpi" else None))
              for job in jobs.values() if job.type != "mpi" or mpirun]
    starts.append(("mpi.yml with the variables of two nodes, over Gloo", Start(by_hand)))
    if not mpirun:
        say("SKIPPED: mpi.yml through mpirun: there is no MPI")
    ran = 0
    with tempfile.TemporaryDirectory(prefix="azure_jobs.") as scratch:
        data = pathlib.Path(scratch) / "data"
        write_data(data)
        for number, (title, start) in enumerate(starts):
            if not (programs / start.job.program).exists():
                say(f"SKIPPED: {title}: {start.job.program} was not built")
                continue
            ran += 1
            try:
                try_job(start, title, pathlib.Path(scratch) / f"job{number}", data, programs)
            except Failure as failure:
                raise Failure(f"{title}: {failure}") from None
    return 0 if ran else 77


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
