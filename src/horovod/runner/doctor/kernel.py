"""What Khorovod asks of the kernel: tried, not looked up. Each probe raises ``OSError`` where it cannot."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import socket
from collections.abc import Callable
from typing import Any

from horovod.runner.doctor.finding import Finding, Level

__all__ = ["CHECKS"]

Probe = Callable[[], object]
MIB = 1 << 20
SMALL_SHM = 64 * MIB  # what Docker gives a container
_FUTEX_CALL = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


def _try(name: str, probe: Probe, works: str, level: Level, advice: str) -> Finding:
    try:
        detail = probe()
    except OSError as error:
        return Finding(name, level, f"does not work: {error.strerror or error}", advice)
    return Finding(name, Level.OK, detail if isinstance(detail, str) else works)


def make_memfd() -> None:
    """Memory to share, of a fixed size."""
    fd = os.memfd_create("khorovod-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, MIB)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with mmap.mmap(fd, MIB) as memory:
            memory[0] = 1
    finally:
        os.close(fd)


def memfd(probe: Probe = make_memfd) -> Finding:
    """Shared memory."""
    return _try(
        "memfd",
        probe,
        "ranks can share memory",
        Level.WARNING,
        "ranks use sockets instead, which are slower; allow memfd_create in the sandbox, see ulimit -f",
    )


def open_pidfd() -> None:
    """A descriptor of a process."""
    os.close(os.pidfd_open(os.getpid()))


def pidfd(probe: Probe = open_pidfd) -> Finding:
    """By which ranks see a peer's death."""
    return _try(
        "pidfd",
        probe,
        "ranks see at once when another one dies",
        Level.WARNING,
        "ranks watch each other's connections instead; allow pidfd_open in the sandbox (Linux 5.3 or newer)",
    )


def use_shared_futex() -> str | None:
    """Wakes nobody, and does not wait for a value that is not there."""
    number = _FUTEX_CALL.get(platform.machine())
    if number is None:
        return f"not tried on {platform.machine()}"
    libc: Any = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:  # shared, as all of ours
        word = ctypes.c_uint32.from_buffer(memory)
        try:
            woken = libc.syscall(number, ctypes.byref(word), _FUTEX_WAKE, 1, None, None, 0)
            if woken != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            if libc.syscall(number, ctypes.byref(word), _FUTEX_WAIT, 1, None, None, 0) != -1:
                raise OSError("it waits for what it should not")
            if ctypes.get_errno() != errno.EAGAIN:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            del word
    return None


def futex(probe: Probe = use_shared_futex) -> Finding:
    """By which ranks wake each other."""
    return _try(
        "futex",
        probe,
        "ranks can wake each other through shared memory",
        Level.PROBLEM,
        "allow futex in the sandbox, or set HOROVOD_CPU_OPERATIONS=tcp",
    )


def use_eventfd() -> None:
    """Write and read back."""
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        os.eventfd_write(fd, 1)
        os.eventfd_read(fd)
    finally:
        os.close(fd)


def eventfd(probe: Probe = use_eventfd) -> Finding:
    """By which an engine's thread is woken."""
    return _try("eventfd", probe, "works", Level.PROBLEM, "allow eventfd2 in the sandbox: init() needs it")


def pass_descriptor() -> None:
    """Over a pair of sockets as the ranks use them, and with a name in the kernel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as named:
        named.bind(f"\0khorovod-doctor-{os.getpid()}")
        ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        socket.send_fds(ours, [b"x"], [0])
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        if len(descriptors) != 1:
            raise OSError("the descriptor did not arrive")


def unix_sockets(probe: Probe = pass_descriptor) -> Finding:
    """By which ranks meet."""
    return _try(
        "unix sockets",
        probe,
        "descriptors can be passed",
        Level.PROBLEM,
        "allow abstract unix sockets and SCM_RIGHTS in the sandbox: the ranks meet on one",
    )


def shm_space() -> tuple[int, int]:
    """Size of /dev/shm, and how much of it is free."""
    found = os.statvfs("/dev/shm")
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def dev_shm(space: Callable[[], tuple[int, int]] = shm_space) -> Finding:
    """Not ours, but what PyTorch's data loaders and others share memory through."""
    advice = "Khorovod does not need it, but PyTorch's data loaders do: docker run --shm-size=1g"
    try:
        size, free = space()
    except OSError as error:
        return Finding("/dev/shm", Level.WARNING, error.strerror or str(error), advice)
    found = f"{size // MIB} MiB, {free // MIB} MiB free"
    if size <= SMALL_SHM or free < SMALL_SHM // 4:
        return Finding("/dev/shm", Level.WARNING, found, advice)
    return Finding("/dev/shm", Level.OK, found)


def connect_on_loopback() -> None:
    """A byte there and back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        with socket.create_connection(listener.getsockname(), timeout=5) as one:
            other, _ = listener.accept()
            with other:
                one.sendall(b"x")
                other.settimeout(5)
                if other.recv(1) != b"x":
                    raise OSError("the byte did not arrive")


def loopback(probe: Probe = connect_on_loopback) -> Finding:
    """What sockets between ranks go through."""
    return _try(
        "loopback TCP",
        probe,
        "127.0.0.1 works",
        Level.WARNING,
        "needed where ranks share no memory, and by torch.distributed: ip link set lo up; look at firewalls",
    )


CHECKS = (memfd, pidfd, futex, eventfd, unix_sockets, dev_shm, loopback)
