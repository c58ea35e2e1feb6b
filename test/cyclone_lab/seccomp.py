"""A filter that ends each process that makes one of these system calls, or has them fail, on Linux, x86-64 and arm64. Needs no privilege."""

import ctypes
import errno
import platform
import struct

# Those that a server without pg_cyclone doesn't make, by architecture, in asm/unistd.h
NUMBERS = {
    "x86_64": {
        "sched_setscheduler": 144, "sched_getscheduler": 145, "sched_setaffinity": 203, "sched_getaffinity": 204, "sched_setattr": 314,
        "setpriority": 141, "ioprio_set": 251, "statfs": 137, "fstatfs": 138, "mincore": 27, "cachestat": 451,
    },
    "aarch64": {
        "sched_setscheduler": 119, "sched_getscheduler": 120, "sched_setaffinity": 122, "sched_getaffinity": 123, "sched_setattr": 274,
        "setpriority": 140, "ioprio_set": 30, "statfs": 43, "fstatfs": 44, "mincore": 232, "cachestat": 451,
    },
}  # fmt: skip
CALLS = tuple(NUMBERS["x86_64"])
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
KILL_PROCESS, REFUSE, ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06


def forbid(calls: tuple[str, ...], verdict: int = KILL_PROCESS) -> None:
    """Have the kernel end this process, and its children, at such a call, or refuse it. Raises OSError."""
    numbers = [NUMBERS[platform.machine()][call] for call in calls]
    program = [(LOAD, 0, 0, 0)]
    program += [(JUMP_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, verdict)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    filter_program = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter of system calls could be set")

