"""The door of a virtual host: a Unix socket at which a program that is to run inside is handed in, as at an sshd.

A request is a line of JSON (`argv`, `environment`, `folder`) with the three standard descriptors. What runs is the
host's own process; the guest outside passes signals on, and gets the exit code. A guest that ends takes with it what it
has started, unless that has gone into a session of its own.
"""

import json
import os
import select
import signal
import socket
import sys
import traceback

FORWARDED = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT]
LONGEST_REQUEST = 4 << 20
HOST_IS_GONE = 255  # what ssh says


def open_door(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    return listener


class Wakeup:
    """A descriptor that is readable after a child has ended; each process has its own."""

    def __init__(self):
        self.read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def clear(self):
        try:
            os.read(self.read_end, 4096)
        except BlockingIOError:
            pass


def reaped():
    """The children that have ended since the last call, with their exit codes; 128 + N after signal N."""
    ended = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[process] = 128 - code if code < 0 else code


def serve(listener, owner=None, is_over=lambda ended: False):
    """Lets guests in until `owner`, a descriptor, has something to say or `is_over`, told of ended children, says so."""
    wakeup = Wakeup()
    watched = [listener, wakeup.read_end] + ([owner] if owner is not None else [])
    while True:
        readable, _, _ = select.select(watched, [], [])
        wakeup.clear()
        if is_over(reaped()) or (owner is not None and owner in readable):
            return
        if listener in readable:
            guest, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                leave_after(lambda: attend(guest))
            guest.close()


def leave_after(work):
    """The end of a forked process, whatever comes."""
    code = 1
    try:
        code = work() or 0
    except BaseException:  # no process may go on in what its parent was doing
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def attend(guest):
    """Runs one guest's program to its end."""
    wakeup = Wakeup()
    bytes_read, descriptors, _, _ = socket.recv_fds(guest, 1 << 16, 3)
    while not bytes_read.endswith(b"\n") and len(bytes_read) < LONGEST_REQUEST:
        more = guest.recv(1 << 16)
        if not more:
            return
        bytes_read += more
    request = json.loads(bytes_read)
    program = os.fork()
    if program == 0:
        leave_after(lambda: become(request, descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        readable, _, _ = select.select([guest, wakeup.read_end], [], [])
        wakeup.clear()
        code = reaped().get(program)
        if code is not None:
            guest.sendall(code.to_bytes(4, "little"))
            return
        if guest in readable:
            numbers = guest.recv(64)
            if not numbers:
                os.killpg(program, signal.SIGKILL)
                return
            for number in numbers:
                os.kill(program, number)


def become(request, descriptors):
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)  # what came in by the door has no O_CLOEXEC
    signal.set_wakeup_fd(-1)
    for number in [signal.SIGPIPE, signal.SIGXFSZ, *FORWARDED]:  # Python ignores the first two: that is inherited
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(request["folder"])
        os.execvpe(request["argv"][0], request["argv"], request["environment"])
    except OSError as error:
        print(f"{request['argv'][0]}: {error.strerror}", file=sys.stderr)
        return 127


def visit(path, argv, environment, standard=(0, 1, 2)):
    """Runs `argv` behind the door at `path`. Returns its exit code."""
    # Before the connection, so that none is lost; a signal's number goes in by the same pipe as the others'.
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write_end)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(path)
            request = {"argv": argv, "environment": environment, "folder": os.getcwd()}
            socket.send_fds(door, [b" "], standard)
            door.sendall(json.dumps(request).encode() + b"\n")
            while True:
                readable, _, _ = select.select([door, read_end], [], [])
                if door in readable:
                    code = door.recv(4)
                    return int.from_bytes(code, "little") if code else HOST_IS_GONE
                for number in os.read(read_end, 64):
                    if number in FORWARDED:
                        door.sendall(bytes([number]))
        except OSError as error:
            print(f"no host behind {path}: {error.strerror}", file=sys.stderr)
            return HOST_IS_GONE
