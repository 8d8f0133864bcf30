"""A mutating fuzzer: inputs made of valid ones, and what each of them costs. The surfaces are in ``fuzz_surfaces``.

Hypothesis gives a millisecond to each example, which a million of inputs do not have; the seed is fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.memory import peak
from tests.runtime.models.test_fuzz import places

STALL = 0.25
"""Seconds that one step of the event loop may take."""
HANG = 20.0
"""Seconds that one input may take."""
GROWTH = 64 * 1024 * 1024
"""Bytes by which the process may grow while a surface is fuzzed, at its peak."""
SCHEDULE = Path("/proc/thread-self/schedstat")
"""What Linux counts of a thread: nanoseconds on a processor, nanoseconds ready without one, and turns."""
HEAD_END = b"\r\n\r\n"
"""Separates the head of an HTTP request from its body."""

Take = Callable[[bytes], Awaitable[bool]]
"""Give an input to a surface. True: it was accepted; False: it was refused in the declared way."""

RAW = (
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.0",
        "1e400",
        "-0.0",
        "1e308",
        "90071992547409935.0",
        "100000000",
        "9" * 400,
        "9" * 5_000,
    ),
    *('""', '"\\ud800"', '"\\u0000"', '"\\u202e\\u200b"', '"' + "a" * 3_000 + '!"', "NaN", "Infinity", "{", "]", "'x'"),
    *("[]", "{}", "[null]", '{"": null}', '{"a":1,"a":2}', '{"__proto__":{}}', '{"$ref":"#"}', '{"$ref":"#/a/b"}'),
    *("[" * 5_000 + "]" * 5_000, '{"a":' * 300 + "1" + "}" * 300, "[" + "0," * 3_000 + "0]", '"^(a|aa)+$"', '"(?=a)b"'),
)
"""JSON, and what is none, for the place of any value."""
WORDS = (
    *("", "type", "id", "name", "error", "result", "x", "arguments", "text", "tool_call", "object", "string", "add"),
    *("$ref", "$defs", "properties", "pattern", "required", "enum", "anyOf", "SendMessage", "tools/call", "approve"),
    *("CANARY", "\x00", "é😀", "../..", "%2e%2e", "2026-07-28", "9223372036854775808", "-1", "1", "\u202e"),
)
BYTES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n\n",
    b"data: ",
    b"{",
    b"}",
    b'"',
    b"\\",
    b"[" * 300,
    b":",
)


def odd(rng: random.Random) -> str:
    """Return the JSON of an odd value, or what is no JSON."""
    return rng.choice(RAW) if rng.random() < 0.6 else json.dumps(rng.choice(WORDS))


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """Replace, drop, duplicate, rename or swap values of a JSON text; bytes that are no JSON are returned as they are."""
    try:
        tree = [json.loads(data)]
    except (ValueError, RecursionError):
        return data
    marks: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        found = places(tree)
        if not found:
            break
        container, key = rng.choice(found)
        match rng.randrange(6):
            case 0 | 1:
                marks.append(odd(rng))
                container[key] = f"@{len(marks) - 1}@"
            case 2 if container is not tree:
                del container[key]
            case 3 if isinstance(container, list):
                container.insert(key, container[key])
            case 4 if isinstance(container, dict):
                container[rng.choice(WORDS)] = container.pop(key)
            case _:
                other, place = rng.choice(found)
                if place in other if isinstance(other, dict) else place < len(other):
                    container[key] = json.loads(json.dumps(other[place]))
    text = json.dumps(tree[0], ensure_ascii=rng.random() < 0.5)
    for number, mark in enumerate(marks):
        text = text.replace(f'"@{number}@"', mark)
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, insert, repeat and flip bytes."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[at + rng.randint(1, 8) :]
            case 2:
                data = data[:at] + data[at : at + 16] * rng.choice((2, 3, 50)) + data[at:]
            case 3:
                data = data[:at] + rng.choice(BYTES) + data[at:]
            case 4:
                data = data[:at] + odd(rng).encode() + data[at:]
            case _:
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
    return data


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Make an input of a seed: mostly it stays JSON behind its head, so that the code behind the parser sees it."""
    data = rng.choice(seeds)
    head, middle, body = data.rpartition(HEAD_END)
    draw = rng.random()
    if draw < 0.6:
        return head + middle + mutated_json(body, rng)
    if draw < 0.8 and head:
        return mutated_bytes(head, rng) + middle + body
    return head + middle + mutated_bytes(body, rng) if draw < 0.95 else mutated_bytes(data, rng)


@dataclass(frozen=True)
class Surface:
    """A place where bytes come in; ``soak`` is its part of the million. The seeds are asked for when it is open."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    open: Callable[[], AbstractAsyncContextManager[Take]]
    quick: int
    soak: int
    needs_data: bool = False


class Cost(NamedTuple):
    """The longest step of the event loop, in seconds: by its processor time, and by the time until its end."""

    computed: float = 0.0
    taken: float = 0.0

    def most(self, other: Cost) -> Cost:
        """The larger of each."""
        return Cost(max(self.computed, other.computed), max(self.taken, other.taken))


class Steps:
    """Measures the steps of the event loop, without the time in which its thread waits for a processor.

    On a busy machine a step takes no longer for that. A step that sleeps, or waits for a lock, does.
    """

    def __init__(self, patch: Any) -> None:
        self.worst, step = Cost(), asyncio.Handle._run
        wall, processor, queued = time.perf_counter, time.thread_time, self._queued
        self._schedule = SCHEDULE.open("rb", buffering=0) if SCHEDULE.exists() else None

        def run(handle: asyncio.Handle) -> None:
            waited, used, began = queued(), processor(), wall()
            step(handle)
            ended, computed = wall(), processor() - used
            self.worst = self.worst.most(Cost(computed, ended - began - (queued() - waited)))

        patch.setattr(asyncio.Handle, "_run", run)

    def _queued(self) -> float:
        """Return the seconds for which this thread has been ready, and had no processor; 0 where no system tells it."""
        if self._schedule is None:
            return 0.0
        self._schedule.seek(0)
        return int(self._schedule.read().split()[1]) / 1e9

    def close(self) -> None:
        """Close the file of the system. The step that closes it is not measured."""
        if (schedule := self._schedule) is not None:
            self._schedule = None
            schedule.close()

    async def of(self, take: Take, data: bytes) -> tuple[bool, Cost]:
        """Give the input to a surface; return its answer, and the cost of the longest step meanwhile."""
        await asyncio.sleep(0)  # what made the input is a step of its own
        self.worst = Cost()
        async with asyncio.timeout(HANG):
            accepted = await take(data)
        await asyncio.sleep(0)
        return accepted, self.worst


@dataclass
class Report:
    """What a surface did with its inputs; ``findings`` are the broken promises."""

    name: str
    inputs: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list[str])
    slowest: tuple[float, bytes] = (0.0, b"")
    grown: int = 0

    def __str__(self) -> str:
        seconds, data = self.slowest
        return (
            f"{self.name}: {self.inputs} inputs, {self.accepted} accepted, slowest step {1000 * seconds:.1f} ms by "
            f"{shown(data, 60)}, peak {self.grown / 2**20:.1f} MiB"
        )


def shown(data: bytes, length: int) -> str:
    """The beginning of an input, and its length."""
    return f"{data[:length]!r} ({len(data)} bytes)"


async def fuzz(surface: Surface, count: int, patch: Any, seed: int = 38) -> Report:
    """Give *count* inputs to a surface: the seeds as they are first, then mutated ones."""
    rng, report = random.Random(seed), Report(surface.name)
    async with surface.open() as take:
        seeds = surface.seeds()
        assert any([await take(data) for data in seeds]), "no input is good: nothing behind the parser is fuzzed"
        with peak() as memory, contextlib.closing(Steps(patch)) as steps:
            for _ in range(count):
                await _give(report, steps, take, mutated(seeds, rng))
        report.grown = memory.grown
    if report.grown > GROWTH:
        report.findings.append(f"memory: {report.grown / 2**20:.0f} MiB at the peak")
    return report


async def _give(report: Report, steps: Steps, take: Take, data: bytes) -> None:
    report.inputs += 1
    try:
        accepted, cost = await steps.of(take, data)
        longest = cost.taken
        for _ in range(
            2
        ):  # a disk that others use is not slow each time; what is computed only once is seen the first time
            if longest < STALL:
                break
            longest = min(longest, (await steps.of(take, data))[1].taken)
    except Exception as error:  # noqa: BLE001  (a finding)
        report.findings.append(f"{type(error).__name__}: {error!s:.200} by {shown(data, 2_000)}")
        return
    report.accepted += accepted
    longest = max(longest, cost.computed)
    report.slowest = max(report.slowest, (longest, data))
    if longest >= STALL:
        report.findings.append(f"stall: {1000 * longest:.0f} ms by {shown(data, 2_000)}")
