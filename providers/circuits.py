"""Circuits of a circuit breaker in this process.

A closed circuit counts failures. An open circuit refuses calls. After ``open_for`` seconds it is half open and lets a
few probes through: a successful probe closes it, a failed probe opens it again. A probe that hangs loses its permit after
``open_for`` seconds, so that another call can probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

BUSY_PROBING = 1.0
"""Retry-after in seconds while other calls probe."""
MAX_CIRCUITS = 10_000
"""Circuits in memory; above it, those without recent failures are dropped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a breaker: *failures* in *window* seconds open it for *open_for* seconds; then *probes* at a time."""

    failures: int
    window: float
    open_for: float
    probes: int


class Refused(Exception):
    """The circuit is open; try again in *seconds*."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Circuit:
    """One circuit in this process.

    It has the times of its last failures, the end of its open state (None: closed), and the times at which the permits of
    its probes expire.
    """

    __slots__ = ("failed", "open_until", "probing")

    def __init__(self, settings: Settings) -> None:
        self.failed: deque[float] = deque(maxlen=settings.failures)
        self.open_until: float | None = None
        self.probing: list[float] = []


class Probe(NamedTuple):
    """A permit to probe *circuit*, which expires at *until*."""

    circuit: Circuit
    until: float


class LocalCircuits:
    """Circuits in this process. A circuit without failures uses no memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known: dict[Hashable, Circuit] = {}

    def enter(self, key: Hashable, now: float) -> Probe | None:
        """Return a permit if this call is a probe; None for any other call that may pass.

        Raises:
            Refused: the circuit is open.
        """
        circuit = self.known.get(key)
        if circuit is None or circuit.open_until is None:
            return None
        if now < circuit.open_until:
            raise Refused(circuit.open_until - now)
        circuit.probing = [until for until in circuit.probing if now < until]
        if len(circuit.probing) >= self.settings.probes:
            raise Refused(min(BUSY_PROBING, self.settings.open_for))
        probe = Probe(circuit, now + self.settings.open_for)
        circuit.probing.append(probe.until)
        return probe

    def leave(self, key: Hashable, probe: Probe | None, failed: bool | None, now: float) -> None:
        """Record an outcome: True for a failure, False for a success, None for neither. A probe returns its permit."""
        if probe is not None:
            probed, until = probe
            if until in probed.probing:  # else it has expired
                probed.probing.remove(until)
            if self.known.get(key) is probed and probed.open_until is not None:
                if failed:
                    probed.open_until = now + self.settings.open_for
                elif failed is False:
                    del self.known[key]
                return
        if failed:
            self._count(key, now)

    def _count(self, key: Hashable, now: float) -> None:
        circuit = self.known.get(key)
        if circuit is None:
            if len(self.known) >= MAX_CIRCUITS:
                self._sweep(now)
            circuit = self.known[key] = Circuit(self.settings)
        if circuit.open_until is not None:  # the circuit opened while this call ran
            return
        circuit.failed.append(now)
        if len(circuit.failed) == self.settings.failures and now - circuit.failed[0] <= self.settings.window:
            circuit.open_until = now + self.settings.open_for
            circuit.failed.clear()

    def _sweep(self, now: float) -> None:
        old = now - self.settings.window
        for key, circuit in list(self.known.items()):
            if circuit.open_until is None and circuit.failed[-1] < old:
                del self.known[key]
