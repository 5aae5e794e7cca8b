"""A small process that starts and stops sandboxes. It is their only parent process. It has a single thread, because the
end of the thread that started a sandbox would kill the sandbox.

It is started by its path and with an empty environment, so that no sandbox inherits environment variables. It serves
one socket, which belongs to one owner process. When the owner ends for any reason, every sandbox is killed and its
cgroups are removed. It uses only the standard library.

A request is JSON: {"op": "open", "argv", "inherited": [base64, ...], "users", "user_ids", "group_folders",
"environment", "limits"} with three descriptors for the standard streams, or {"op": "close", "id", "cleanup", "grace"}.
`inherited` are contents that the program receives as the open descriptors 3, 4, ... `users` are the users in its own
user namespace. Outside of it, their ids are unused ids from [first, last] of `user_ids`. The program is started as the first
of them, or as the current user if there are none. The answer is also JSON. {"error": text} states what failed.
"""

import array
import base64
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000
UNMAPPED, MAPPED = b"\0", b"."
"""The byte that a child sends after it has created its user namespace, and the byte that it receives after the users
have been mapped."""
KILL_SECONDS = 5.0
"""Seconds that the processes of a killed sandbox may take to end."""
MESSAGE = 1 << 20


class Spawner:
    """The sandboxes of one owner, and the socket through which the owner requests them."""

    def __init__(self, channel, lock_folder):
        self.channel, self.lock_folder = channel, lock_folder
        self.owner = os.getppid()
        self.boxes = {}
        self.libc = ctypes.CDLL(None, use_errno=True)

    def serve(self):
        """Handle requests until the owner ends."""
        try:
            while os.getppid() == self.owner:
                if not select.select([self.channel], [], [], 1.0)[0]:
                    continue
                content, descriptors = self.receive()
                if not content:
                    return
                try:
                    answer = self.answer(json.loads(content), descriptors)
                except Exception as error:  # noqa: BLE001 (the owner receives any error)
                    answer = {"error": f"{type(error).__name__}: {error}"}
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
                self.channel.send(json.dumps(answer).encode())
        finally:
            for id in list(self.boxes):
                self.close(id, [])

    def receive(self):
        """Return the next message and the descriptors that came with it."""
        size = array.array("i").itemsize * 3
        content, ancillary, _, _ = self.channel.recvmsg(MESSAGE, socket.CMSG_SPACE(size))
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        return content, list(descriptors)

    def answer(self, request, descriptors):
        """Handle a request and return its answer."""
        if request["op"] == "open":
            return self.open(request, descriptors)
        return self.close(request["id"], request["cleanup"], request["grace"])

    def open(self, request, descriptors):
        """Start a sandbox. Return its id, or the error."""
        users = request["users"]
        outside, lock = self.unused_users(len(users), request["user_ids"])
        failure, report = os.pipe()
        proceed, is_mapped = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(failure)
            os.close(is_mapped)
            self.become(request, descriptors, proceed, report)
        os.close(report)
        os.close(proceed)
        with open(failure, "rb") as pipe:
            problem = pipe.read(1)
            if problem == UNMAPPED:
                problem = self.map_users(pid, zip(users, outside, strict=True)).encode()
                os.write(is_mapped, b"" if problem else MAPPED)
            os.close(is_mapped)
            problem += pipe.read()
        if problem:
            os.waitpid(pid, 0)
            if lock is not None:
                os.close(lock)
            return {"error": problem.decode()}
        self.boxes[pid] = (lock, request["group_folders"])
        return {"id": pid}

    def map_users(self, pid, pairs):
        """Map the users in a process's user namespace to ids outside of it. Return the error, or an empty text."""
        lines = "".join(f"{inside} {outside} 1\n" for inside, outside in pairs)
        try:
            for kind in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{kind}", "w") as file:
                    file.write(lines)
        except OSError as error:
            return f"cannot map users: {error}; "
        return ""

    def unused_users(self, number, span):
        """Return user ids that no other sandbox of this machine uses, and the lock that reserves them."""
        if not number:
            return (), None
        os.makedirs(self.lock_folder, mode=0o700, exist_ok=True)
        for user in range(span[0], span[1] + 2 - number, number):
            lock = os.open(f"{self.lock_folder}/{user}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return range(user, user + number), lock
            except BlockingIOError:
                os.close(lock)
        raise RuntimeError(f"all user ids from {span[0]} to {span[1]} are in use by other sandboxes")

    def become(self, request, descriptors, proceed, report):
        """Turn the child process into the sandbox: join the cgroups, drop all privileges, and execute the program."""
        step = "start"
        try:
            step = "join a control group"
            for folder in request["group_folders"]:
                with open(folder + "/cgroup.procs", "w") as file:
                    file.write("0")
            step = "open what it inherits"
            inherited = []
            for content in request["inherited"]:
                file = os.memfd_create("sandbox")
                os.write(file, base64.b64decode(content))
                os.lseek(file, 0, os.SEEK_SET)
                inherited.append(file)
            # Move the descriptors to high numbers first, then to their final numbers. All others are closed at exec.
            high = [
                fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 64) for file in (*descriptors, *inherited, proceed, report)
            ]
            for number, file in enumerate(high[:-2]):
                os.dup2(file, number)
            os.closerange(len(high) - 2, min(high))
            proceed, report = high[-2:]
            step = "set limits"
            for name, value in request["limits"].items():
                resource.setrlimit(getattr(resource, name), (value, value))
            step = "leave the terminal"
            os.setsid()
            os.umask(0o077)
            os.chdir("/")
            if request["users"]:
                step = "leave all groups"
                os.setgroups([])
                step = "make a user namespace"
                self.check(self.libc.unshare(CLONE_NEWUSER))
                os.write(report, UNMAPPED)
                if os.read(proceed, 1) != MAPPED:
                    os._exit(1)
                step = "become another user"
                user = request["users"][0]
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                # The system call filter also refuses user namespaces, because not every machine allows this file to be
                # written.
                with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
                    file.write("0")
            step = "give up new privileges"
            self.check(self.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
            step = "execute {}".format(request["argv"][0])
            for number in range(1, signal.NSIG):
                # Some numbers are reserved by the C library, and others cannot be handled.
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.execve(request["argv"][0], request["argv"], request["environment"])
        except BaseException as error:  # noqa: BLE001 (a forked child must never return into the loop of its parent)
            os.write(report, (f"cannot {step}: {error}").encode())
        os._exit(1)

    @staticmethod
    def check(failed):
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def close(self, id, cleanup, grace=0.0):
        """Kill a sandbox and wait until all its processes have ended.

        `status` states how the sandbox exited by itself within `grace` seconds. `left` names resources that could not
        be removed.
        """
        lock, group_folders = self.boxes.pop(id)
        status = self.wait(id, grace) if grace else None
        is_gone = status is not None
        if not is_gone:
            # Kill the first process inside first: the kernel kills its namespace before the process outside can notice.
            for pid in self.children(id):
                self.kill(pid)
            is_gone = self.wait(id, 0.5) is not None
        if not is_gone:
            self.kill(id)
            is_gone = self.wait(id, KILL_SECONDS) is not None
        for command in cleanup:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        left = [folder for folder in group_folders if not self.remove(folder)] + ([] if is_gone else [f"process {id}"])
        # While processes remain, no other sandbox gets their user id.
        if lock is not None and not left:
            os.close(lock)
        return {"status": status, "left": left}

    def children(self, pid):
        """Return the ids of a process's child processes, or an empty list if they cannot be read."""
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                return [int(child) for child in file.read().split()]
        except OSError:
            return []

    def kill(self, pid):
        """Kill a process, if it still exists."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def wait(self, pid, seconds):
        """Return the exit status of a child process, or None if it did not exit in time."""
        until = time.monotonic() + seconds
        pause = 0.0005
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def remove(self, folder):
        """Kill the remaining processes of a cgroup, and remove the cgroup. Return False if this failed."""
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            try:
                os.rmdir(folder)
                return True
            except FileNotFoundError:
                return True
            except OSError:
                with contextlib.suppress(OSError), open(folder + "/cgroup.procs") as file:
                    for pid in file.read().split():
                        self.kill(int(pid))
                time.sleep(0.002)
        return False


if __name__ == "__main__":
    Spawner(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]).serve()
