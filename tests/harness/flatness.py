"""Samples of what a process holds, over time: memory, tasks and file descriptors; only where Linux tells it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

MEMORY, TASKS, FILES = 64 * 1024 * 1024, 20, 20
"""How much more of each a process may hold in the last fifth of the time than in the second."""


class Held(NamedTuple):
    """Bytes of memory, tasks of the loop, and open files."""

    memory: int
    tasks: int
    files: int


def held() -> Held:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"), len(asyncio.all_tasks()), sum(1 for _ in Path("/proc/self/fd").iterdir())
    )


@dataclass
class Flatness:
    """Samples over a time."""

    samples: list[Held] = field(default_factory=list[Held])

    async def sample(self, seconds: float, number: int = 100) -> None:
        """Take so many samples in so many seconds."""
        for _ in range(number):
            self.samples.append(held())
            await asyncio.sleep(seconds / number)

    def growth(self) -> Held:
        """The median of the last fifth of the samples, less that of the second."""
        fifth = max(1, len(self.samples) // 5)
        early, late = self.samples[fifth : 2 * fifth] or self.samples[:1], self.samples[-fifth:]
        found = (int(median(kind)) for kind in zip(*late, strict=True))
        return Held(*(now - int(median(kind)) for now, kind in zip(found, zip(*early, strict=True), strict=True)))

    def problems(self) -> list[str]:
        """What has grown."""
        limits = Held(MEMORY, TASKS, FILES)
        grown = self.growth()
        return [
            f"{name} has grown by {getattr(grown, name)}"
            for name in Held._fields
            if getattr(grown, name) > getattr(limits, name)
        ]
