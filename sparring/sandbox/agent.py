"""The program of a sandbox's first process. It receives files and programs from outside and returns their results.

Its source is passed to the interpreter inside, which may be older than the one outside, and on which this package need
not be installed. It imports few modules, because each of them makes every start milliseconds slower. It is not trusted:
the code outside limits and checks its answers. After a program has run, that code attributes an invalid answer to the
program.

A frame is one byte for its kind, four bytes of length (big endian), and the content. From outside: `W` write a file,
`S` start a program, `I` its input, `E` the end of its input, `K` kill it, `C` collect files; contents of W, S and C are
marshalled. To the outside: `O` and `e` output and errors of the program, `X` how it ended, `F` the size and name of a
file and `D` its content, `N` the reason why a file was rejected (after its name if many were requested), `.` done.
"""

import _signal as signal  # pyright: ignore[reportMissingImports] (`signal` itself loads enum and re)
import errno
import itertools
import marshal
import os
import resource
import select
import stat
import struct
import sys
import time

MIB = 1 << 20
CHUNK = 1 << 16
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
FOLDER = os.O_RDONLY | os.O_DIRECTORY
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
NUM_CAPABILITIES = 64
"""More capabilities than any kernel has."""
POLL_SECONDS = 0.02
"""The interval between checks of the number of files, in seconds."""


class Ended(Exception):
    """Raised when a program reaches a limit."""


def hide(has_capabilities):
    """Prevent programs, which may run under the same user, from reading this process or its channel, and from acquiring
    its capabilities."""
    try:
        import _ctypes

        # This is the base of `ctypes`; importing the rest takes milliseconds.
        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # pyright: ignore[reportArgumentType]

        def prctl(*arguments):
            return _ctypes.call_function(address, (*arguments, 0, 0, 0))
    except (ImportError, AttributeError):
        import ctypes

        def prctl(*arguments):
            return ctypes.CDLL(None).prctl(*arguments, 0, 0, 0)

    if prctl(PR_SET_DUMPABLE, 0):
        sys.exit("the first process cannot hide itself")
    for number in range(NUM_CAPABILITIES if has_capabilities else 0):
        prctl(PR_CAPBSET_DROP, number)


def receive(size):
    """Read exactly `size` bytes from the channel, or exit if the channel is closed."""
    parts = []
    while size:
        try:
            part = os.read(0, min(size, MIB))
        except BlockingIOError:  # some back ends pass the channel in that mode
            select.select([0], [], [])
            continue
        if not part:
            os._exit(0)  # the process that opened the sandbox has ended
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def receive_frame():
    """Return the kind and the content of the next frame."""
    kind, size = struct.unpack(">cI", receive(5))
    return kind, receive(size)


def send(kind, content=b""):
    """Write one frame to the channel."""
    view = memoryview(struct.pack(">cI", kind, len(content)) + content)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:
            select.select([], [1], [])


class Box:
    """The scratch folder and the programs that run in it, one at a time."""

    def __init__(self, settings):
        self.settings = settings
        self.scratch = settings["scratch"]
        self.is_init = os.getpid() == 1
        self.next_look = 0.0
        self.wakeup, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.wakeup, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.user = settings["user"]
        os.makedirs(self.scratch + "/.tmp", exist_ok=True)
        if self.user is not None:
            os.chown(self.scratch, self.user, self.user)
            os.chown(self.scratch + "/.tmp", self.user, self.user)

    def serve(self):
        """Handle requests until the channel is closed."""
        send(b".")
        while True:
            kind, content = receive_frame()
            if kind == b"W":
                self.write(*marshal.loads(content))
            elif kind == b"S":
                self.run(marshal.loads(content))
            elif kind == b"C":
                self.collect(**marshal.loads(content))
                send(b".")
            # Input and kills may arrive after the program has ended. They are ignored.

    def write(self, name, content):
        """Write a file, and replace anything that has the same name, such as a link. No folder in the path may be a
        link."""
        try:
            folder, last = self.open_folder(name, make=True)
            try:
                try:
                    file = os.open(last, NEW, 0o644, dir_fd=folder)
                except FileExistsError:
                    os.unlink(last, dir_fd=folder)
                    file = os.open(last, NEW, 0o644, dir_fd=folder)
                try:
                    with open(file, "wb") as stream:
                        self.hand_over(file, 0o644)
                        stream.write(content)
                except OSError:
                    os.unlink(last, dir_fd=folder)
                    raise
            finally:
                os.close(folder)
        except OSError as error:
            send(b"N", self.reason(error))
        else:
            send(b".")

    def hand_over(self, file, mode):
        """Set a file's mode explicitly, regardless of any default ACL that a program has set on the file's folder, and
        make the programs' user its owner."""
        os.fchmod(file, mode)
        if self.user is not None:
            os.fchown(file, self.user, self.user)

    def run(self, request):
        """Run a program until it ends or reaches a limit. Then send its remaining output and how it ended."""
        began = time.monotonic()
        deadline = began + request["seconds"]
        try:
            pipes = [os.pipe() for _ in range(3)]
            child = os.fork()
        except OSError as error:
            os.write(2, f"no program can be started: {os.strerror(error.errno or 0)}\n".encode())
            send(b"X", struct.pack(">id", 0, 0.0) + b"unstarted")
            return
        if child == 0:
            self.become(request, [pipes[0][0], pipes[1][1], pipes[2][1]])
        for end in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(end)
        program = Program(child, pipes[0][1], {pipes[1][0]: b"O", pipes[2][0]: b"e"}, request["output"])
        ended = b"exit"
        try:
            while program.status is None:
                self.step(program, deadline)
        except Ended as limit:
            ended = limit.args[0]
        self.kill_all(program)
        os.chmod(self.scratch, 0o700)
        program.close_input()
        try:
            program.drain()
        except Ended as limit:
            ended = ended if ended != b"exit" else limit.args[0]
        if self.has_too_many_files():
            # This applies however the program ended: too many files would end the next program too.
            ended = b"files"
        program.close()
        code = os.waitstatus_to_exitcode(program.status) if program.status is not None else 0
        send(b"X", struct.pack(">id", code, time.monotonic() - began) + ended)

    def become(self, request, ends):
        """Turn the child process into the program: set limits and standard streams, close everything else, and execute
        the program."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.setsid()
            for number, end in enumerate(ends):
                os.dup2(end, number)
            os.closerange(3, 4096)
            for name, value in request["limits"].items():
                number = getattr(resource, name)
                hard = resource.getrlimit(number)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(number, (value, value))
            try:
                # When memory runs out, the kernel kills the program before the process that reports it.
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write("1000")
            except OSError:
                pass
            if self.user is not None:
                os.setresgid(self.user, self.user, self.user)
                os.setresuid(self.user, self.user, self.user)
            os.chdir(self.scratch)
            os.umask(0o022)
            os.execvpe(request["argv"][0], request["argv"], self.settings["environment"])
        except OSError as error:
            os.write(2, ("{}: {}\n".format(request["argv"][0], os.strerror(error.errno or 0))).encode(errors="replace"))
        except BaseException as error:  # noqa: BLE001 (a forked child must never return into the loop of its parent)
            os.write(2, (f"{error!r}\n").encode())
        os._exit(127)

    def step(self, program, deadline):
        """Wait for the next event, at most until the next check of the limits."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise Ended(b"deadline")
        readable, writable, _ = select.select(
            [0, self.wakeup, *program.outputs], [program.input] if program.pending else [], [], min(left, POLL_SECONDS)
        )
        if 0 in readable:
            kind, content = receive_frame()
            if kind == b"K":
                raise Ended(b"deadline")
            if kind == b"I":
                program.pending += content
            elif kind == b"E":
                program.is_input_over = True
        if writable or (program.is_input_over and not program.pending):
            program.feed()
        for end in readable:
            if end in program.outputs:
                program.pass_on(end)
        if self.wakeup in readable:
            os.read(self.wakeup, CHUNK)
        self.reap(program)
        self.look()

    def look(self):
        """Check the limits that the kernel does not enforce with this back end."""
        began = time.monotonic()
        if began < self.next_look:
            return
        if self.has_too_many_files():
            raise Ended(b"files")
        allowed = self.settings["processes"]
        if allowed is not None and sum(name.isdigit() for name in os.listdir("/proc")) - 1 > allowed:
            raise Ended(b"processes")
        # A slow check is repeated less often.
        now = time.monotonic()
        self.next_look = now + max(POLL_SECONDS, 10 * (now - began))

    def has_too_many_files(self):
        """Return whether the scratch folder exceeds its limit on files and folders."""
        allowed = self.settings["files"]
        return allowed is not None and self.count_files(allowed) > allowed

    def count_files(self, enough):
        """Count the files and folders in the scratch folder. If the file system does not report a count, stop counting
        above `enough`."""
        system = os.statvfs(self.scratch)
        if system.f_files:
            return system.f_files - system.f_ffree
        count = 0
        for _, folders, files in os.walk(self.scratch):
            count += len(folders) + len(files)
            if count > enough:
                break
        return count

    def reap(self, program):
        """Reap child processes that have ended, and store the status of the program."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == program.pid:
                    program.status = status
        except ChildProcessError:
            return

    def kill_all(self, program):
        """Kill the program and everything that it started."""
        try:
            if self.is_init:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(program.pid, signal.SIGKILL)
        except OSError:  # no process is left
            pass
        try:
            while True:
                pid, status = os.waitpid(-1, 0)
                if pid == program.pid:
                    program.status = status
        except ChildProcessError:
            return

    def collect(self, names, files, size, depth):
        """Send the named files, or all files, up to `files` files and `size` bytes. For each rejected file, send the
        reason."""
        left = size
        found = self.every_name(depth) if names is None else ((name, b"") for name in names)
        for name, problem in itertools.islice(found, files):
            try:
                file = None if problem else self.open_beneath(name)
            except OSError as error:
                file, problem = None, self.reason(error)
            if file is None:
                send(b"N", os.fsencode(name) + b"\0" + problem)
                continue
            try:
                info = os.fstat(file)
                if not stat.S_ISREG(info.st_mode):
                    send(b"N", os.fsencode(name) + b"\0is not a regular file")
                elif info.st_size > left:
                    send(b"N", os.fsencode(name) + b"\0is larger than what may be collected")
                else:
                    left -= info.st_size
                    self.send_file(name, file, info.st_size)
            finally:
                os.close(file)

    def send_file(self, name, file, size):
        """Send the size and name of an open file, then its content."""
        send(b"F", struct.pack(">Q", size) + os.fsencode(name))
        while size:
            try:
                content = os.read(file, min(size, CHUNK))
            except OSError:
                content = b""
            # A file that has shrunk in the meantime is padded, so that its content has the announced size.
            content = content or bytes(min(size, CHUNK))
            size -= len(content)
            send(b"D", content)

    def every_name(self, depth):
        """Yield the paths in the scratch folder, each with the reason why it cannot be read, if there is one.

        Links are listed but not followed. Folders that are nested more than `depth` deep are not entered.
        """
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(os.path.join(self.scratch, folder)) as entries:
                    found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            except OSError as error:
                yield folder or ".", self.reason(error)
                continue
            for entry, is_folder in found:
                name = os.path.join(folder, entry)
                if not is_folder:
                    yield name, b""
                elif name.count("/") + 1 == depth:
                    yield name, b"is nested in too many folders"
                elif name != ".tmp":
                    folders.append(name)

    def open_folder(self, name, make=False):
        """Open the parent folder of a path without following any link. Return this folder and the path's last part."""
        *parts, last = name.split("/")
        folder = os.open(self.scratch, FOLDER)
        try:
            for part in parts:
                try:
                    self.refuse_link(part, folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, dir_fd=folder)
                    is_new = True
                else:
                    is_new = False
                inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
                if is_new:
                    self.hand_over(folder, 0o755)
        except OSError:
            os.close(folder)
            raise
        return folder, last

    def open_beneath(self, name):
        """Open a file in the scratch folder without following a link and without waiting for the other end of a
        pipe."""
        folder, last = self.open_folder(name)
        try:
            self.refuse_link(last, folder)
            return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)

    @staticmethod
    def refuse_link(name, folder):
        """Reject a link explicitly, because some kernels ignore O_NOFOLLOW with O_DIRECTORY. No program that could
        replace it is running at this time."""
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    @staticmethod
    def reason(error):
        """Return a short reason for an OSError, as bytes."""
        return b"is a link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0).encode()


class Program:
    """A running program and its three pipes."""

    def __init__(self, pid, input, outputs, allowance):
        self.pid, self.input, self.outputs, self.allowance = pid, input, outputs, allowance
        self.pending, self.is_input_over, self.status = b"", False, None
        os.set_blocking(input, False)

    def feed(self):
        """Write as much pending input to the program as its pipe accepts."""
        if self.input is None:
            self.pending = b""
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.input, self.pending[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.pending = b""
        if self.is_input_over:
            self.close_input()

    def close_input(self):
        """Close the program's standard input."""
        if self.input is not None:
            os.close(self.input)
            self.input, self.pending = None, b""

    def pass_on(self, end):
        """Send the program's output, up to the limit for both streams together."""
        content = os.read(end, CHUNK)
        if not content:
            os.close(end)
            del self.outputs[end]
            return
        if self.allowance:
            send(self.outputs[end], content[: self.allowance])
        if len(content) > self.allowance:
            self.allowance = 0
            raise Ended(b"output")
        self.allowance -= len(content)

    def drain(self):
        """Send the remaining content of the pipes, whose writers have ended."""
        while self.outputs:
            ready = select.select(list(self.outputs), [], [], 0)[0]
            if not ready:
                return
            for end in ready:
                self.pass_on(end)

    def close(self):
        """Close the output pipes."""
        for end in self.outputs:
            os.close(end)


if __name__ == "__main__":
    known = marshal.loads(bytes.fromhex(sys.argv[-1]))
    hide(has_capabilities=known["user"] is not None)
    Box(known).serve()
