"""Takes system calls away from a process, as sandboxes do: they fail with an error from then on.

``deny({"pidfd_open": errno.EPERM})`` in a process, before it starts threads; or, for a command:
``python seccomp.py pidfd_open=EPERM memfd_create=ENOSYS -- command ...``. There is no way back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping

_NUMBERS = {
    "x86_64": {
        "memfd_create": 319,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
        "eventfd2": 290,
        "timerfd_create": 283,
    },
    "aarch64": {
        "memfd_create": 279,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
        "eventfd2": 19,
        "timerfd_create": 85,
    },
}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def supported() -> bool:
    """Whether this machine's system calls are known here."""
    return platform.machine() in _NUMBERS


def program(denied: Mapping[str, int], machine: str) -> bytes:
    """The filter: the denied calls return their error, all others go on."""
    code = [
        _instruction(_LOAD_WORD, _ARCHITECTURE_AT),
        _instruction(_JUMP_IF_EQUAL, _ARCHITECTURES[machine], if_true=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD_WORD, _NUMBER_AT),
    ]
    for name, error in denied.items():
        code.append(_instruction(_JUMP_IF_EQUAL, _NUMBERS[machine][name], if_false=1))
        code.append(_instruction(_RETURN, _FAIL | error))
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def deny(denied: Mapping[str, int]) -> None:
    """From now on, for this thread and all that it starts, these calls fail with these errors."""
    code = program(denied, platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    split = sys.argv.index("--")
    pairs = (argument.split("=") for argument in sys.argv[1:split])
    deny({name: getattr(errno, error) for name, error in pairs})
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
