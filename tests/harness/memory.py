"""The peak of this process's memory, of every allocator; only where Linux tells it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Generator
from pathlib import Path

STATUS = Path("/proc/self/status")


class Peak:
    """The growth of this process to its peak, in bytes."""

    grown = 0


def _kilobytes(name: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(name))


@contextlib.contextmanager
def peak() -> Generator[Peak]:
    """Measure the peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, found = _kilobytes("VmRSS"), Peak()
    yield found
    found.grown = (_kilobytes("VmHWM") - before) * 1024
