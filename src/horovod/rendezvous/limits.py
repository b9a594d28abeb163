"""What stands in the way when the system refuses something: the limit behind an error, and what to do."""

from __future__ import annotations

import errno
import os
import resource


def open_files() -> str:
    """The limit of open descriptors, in words."""
    return f"the limit of open files (ulimit -n) is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}; raise it"


def explain(error: Exception) -> str:
    """What the error is, and which limit to look at."""
    text = str(error)
    code = error.errno if isinstance(error, OSError) else None
    if code is not None:
        text = os.strerror(code)
    else:  # the native side tells it in words
        code = next((known for known in _KNOWN if os.strerror(known) in text), None)
    hint = _hint(code)
    return f"{text}: {hint}" if hint else text


_KNOWN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSYS, errno.EPERM)


def _hint(code: int | None) -> str:
    match code:
        case errno.EMFILE:
            return open_files()
        case errno.ENFILE:
            return "the whole machine is out of open files (fs.file-max)"
        case errno.ETOOMANYREFS:
            return f"too many descriptors are on their way; {open_files()}"
        case errno.ENOMEM | errno.ENOBUFS:
            return "memory is short, or limited (ulimit -v, the container's limit)"
        case errno.EAGAIN:
            return "threads or memory are limited (ulimit -u, ulimit -v, the container's limits)"
        case errno.ENOSYS | errno.EPERM:
            return "the kernel is too old, or a sandbox (seccomp) forbids it"
        case _:
            return ""
