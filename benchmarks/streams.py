"""Streams: a model's answer decoded by Callgate's client and by the provider's own; see ``official.py``."""

from __future__ import annotations

from benchmarks.timing import Effort
from tests.conftest import HAS_DATA, MISSING


async def measure(effort: Effort) -> dict[str, float]:
    if not HAS_DATA:
        print(f"streams: {MISSING}")
        return {}
    from benchmarks import official  # the official clients weigh much: the other sections do without them

    return await official.measure(effort)
