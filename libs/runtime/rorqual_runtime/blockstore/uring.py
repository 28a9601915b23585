"""An io_uring of one thread, by system calls.

With the flags chosen here (Linux 6.1) the kernel takes requests and posts results only within this
thread's own calls of io_uring_enter, so that plain reads and writes of the rings are in order.
Source: io_uring_setup(2), io_uring_enter(2).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from typing import Final

READV: Final = 1
WRITEV: Final = 2

_SYS_SETUP, _SYS_ENTER = 425, 426  # on every architecture
_SINGLE_ISSUER, _DEFER_TASKRUN = 1 << 12, 1 << 13
_GETEVENTS = 1
_SINGLE_MMAP = 1
_AGAIN = (errno.EINTR, errno.EAGAIN, errno.EBUSY)
_AT_RINGS, _AT_REQUESTS = 0, 0x1000_0000
_PARAMS = struct.Struct("<2IIIIII3I" + "8IQ" * 2)
"""entries of both rings, flags, thread, idle time, features, ...; then where things are in the ring
of requests and in that of results"""
_REQUEST = struct.Struct("<BBHiQQIIQHHiQQ")
"""opcode, flags, priority, fd, file offset, address, count, flags, tag, ..."""
_RESULT = struct.Struct("<QiI")
"""tag, result, flags"""
_U32 = 0xFFFF_FFFF

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class Uring:
    """Requests go in by `request`; `enter` starts them and says which are done."""

    def __init__(self, num_entries: int) -> None:
        """num_entries: a power of two; at most so many may be under way.

        Raises: OSError when this kernel, or who runs us, does not allow it.
        """
        params = ctypes.create_string_buffer(_PARAMS.size)
        struct.pack_into("<I", params, 8, _SINGLE_ISSUER | _DEFER_TASKRUN)
        self._fd = int(_syscall(_SYS_SETUP, num_entries, params))
        if self._fd < 0:
            raise _last_error()
        self._num_queued = self._tail = self._head = 0
        self._map(_PARAMS.unpack(params.raw))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _map(self, params: tuple[int, ...]) -> None:
        num_requests, num_results, features = params[0], params[1], params[5]
        if not features & _SINGLE_MMAP:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        _, request_tail, request_mask, _, _, _, order, _, _ = params[10:19]
        result_head, result_tail, result_mask, _, _, results, _, _, _ = params[19:28]
        size = max(order + 4 * num_requests, results + _RESULT.size * num_results)
        self._rings = mmap.mmap(self._fd, -(-size // 4) * 4, offset=_AT_RINGS)
        self._requests = mmap.mmap(self._fd, _REQUEST.size * num_requests, offset=_AT_REQUESTS)
        self._words = memoryview(self._rings).cast("I")
        for index in range(num_requests):
            self._words[order // 4 + index] = index
        self._request_mask = self._words[request_mask // 4]
        self._result_mask = self._words[result_mask // 4]
        self._request_tail, self._result_head = request_tail // 4, result_head // 4
        self._result_tail, self._results_at = result_tail // 4, results

    def request(self, opcode: int, fd: int, offset: int, iovecs: int, count: int, tag: int) -> None:
        """Queue one. iovecs: address of count of them; it and what it leads to must stay until the
        result with this tag is there."""
        _REQUEST.pack_into(
            self._requests, (self._tail & self._request_mask) * _REQUEST.size,
            opcode, 0, 0, fd, offset, iovecs, count, 0, tag, 0, 0, 0, 0, 0,
        )  # fmt: skip
        self._tail = (self._tail + 1) & _U32
        self._num_queued += 1

    def enter(self, num_wanted: int) -> list[tuple[int, int]]:
        """Start what is queued and wait for num_wanted results: no more than are under way.

        Returns (tag, bytes moved or -errno) of each that is done. Raises: OSError.
        """
        done: list[tuple[int, int]] = []
        self._words[self._request_tail] = self._tail
        while self._num_queued or len(done) < num_wanted:
            missing = max(0, num_wanted - len(done))
            taken = _syscall(_SYS_ENTER, self._fd, self._num_queued, missing, _GETEVENTS, 0, 0)
            if taken >= 0:
                self._num_queued -= taken
            elif ctypes.get_errno() not in _AGAIN:
                raise _last_error()
            done += self._taken_results()
        return done

    def _taken_results(self) -> list[tuple[int, int]]:
        done = []
        tail = self._words[self._result_tail]
        while self._head != tail:
            at = self._results_at + (self._head & self._result_mask) * _RESULT.size
            tag, result, _ = _RESULT.unpack_from(self._rings, at)
            done.append((tag, result))
            self._head = (self._head + 1) & _U32
        self._words[self._result_head] = self._head
        return done


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
