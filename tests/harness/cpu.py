"""CPU time of a piece of work, for bounds that hold on a busy machine, too."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], enough: float, tries: int = 3) -> float:
    """The least CPU time of this thread for *work* in some tries; one that is below *enough* is the last.

    A collection of garbage, or a neighbour on the same core, makes one try slow; what is slow by itself is slow each time.
    """
    least = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        work()
        least = min(least, time.thread_time() - began)
        if least < enough:
            break
    return least
