"""What is found after a kill run: what became of every job, and all that breaks a promise, in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import Any

from callgate import Outcome
from callgate.providers.stores.jobs import FINAL_STATES, Job, JobState
from callgate.runtime.pipeline.result_json import result_from_json
from tests.runtime.jobs.kill_app import EFFECTFUL, LEASE, PLACES, RATION
from tests.runtime.jobs.kill_crew import Death
from tests.runtime.jobs.kill_lines import Oracle

SLACK = 0.05
"""Seconds by which what counts a quota may see another time than its caller."""
DYING = 5.0
"""Seconds in which a process that is killed may yet begin something; its id is given to no other so soon."""


@dataclass(frozen=True)
class Recovery:
    """Jobs that were in flight as all workers died. Seconds, to the end of the last of them.

    ``after_kill`` is from the moment of the kill, ``after_ready`` from when the fresh worker said that it was ready.
    """

    jobs: int
    after_kill: float
    after_ready: float

    @property
    def within(self) -> float:
        """In redelivery times, from when somebody was there to deliver to."""
        return self.after_ready / LEASE


@dataclass
class Findings:
    """See the module. ``peaks`` is how many bodies of a tool lived at a time, ``put_off`` how often a quota refused."""

    seed: int
    submitted: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    breaches: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    kills: Counter[str] = field(default_factory=Counter[str])
    peaks: dict[str, int] = field(default_factory=dict[str, int])
    put_off: int = 0
    seconds: float = 0.0
    recovery: Recovery | None = None

    @property
    def problems(self) -> list[str]:
        """All that breaks a promise; the seed with it, so that it can be looked for again."""
        found = [*self.lost, *self.doubled, *self.breaches, *self.changed]
        return [f"seed {self.seed}", *found] if found else []

    def figures(self) -> str:
        """In one line."""
        recovery = self.recovery and (
            f"{self.recovery.jobs} in flight recovered {self.recovery.after_kill:.1f} s after the kill, "
            f"{self.recovery.after_ready:.1f} s ({self.recovery.within:.2f} redelivery times) after the worker was ready"
        )
        return (
            f"seed {self.seed}: {self.submitted} submitted, outcomes {dict(self.outcomes)}, kills {dict(self.kills)}, "
            f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.breaches)} breaches of limits, "
            f"{len(self.changed)} changed, peaks {self.peaks}, put off {self.put_off}, {self.seconds:.1f} s; {recovery}"
        )


def judge(found: Findings, oracle: Oracle, jobs: Mapping[str, Job], deaths: Sequence[Death]) -> None:
    """Find out what became of everything."""
    found.submitted = len(oracle.submitted)
    found.lost += [f"{key} was never submitted" for key in oracle.intended - oracle.submitted.keys()]
    found.doubled += [f"{key} is {len(ids)} jobs" for key, ids in oracle.submitted.items() if len(ids) > 1]
    known = {id: key for key, ids in oracle.submitted.items() for id in ids}
    found.doubled += [f"a job that nobody submitted: {id}" for id in jobs.keys() - known.keys()]
    begun = Counter(line["begun"] for line in oracle.begun.values())
    for id, key in known.items():
        job = jobs.get(id)
        if job is None or job.state not in FINAL_STATES:
            found.lost.append(f"{key} is {'gone' if job is None else job.state}")
            continue
        outcome = outcome_of(job)
        found.outcomes[outcome] += 1
        done = oracle.effects if key.startswith(EFFECTFUL) else begun
        if outcome == "success" and not done[key]:
            found.lost.append(f"{key} is a success of nothing")
    found.doubled += [f"{key}: {number} effects" for key, number in oracle.effects.items() if number > 1]
    found.put_off = sum(job.token - 1 for job in jobs.values() if job.tool == "ask")
    for name, places in PLACES.items():
        most = most_at_once(name, oracle, deaths)
        found.peaks[name] = len(most)
        if len(most) > places:
            found.breaches.append(f"{len(most)} bodies of {name} at a time in {places} places: {', '.join(most)}")
    found.breaches += over_ration(oracle)


def outcome_of(job: Job) -> str:
    """How a job that is over ended, in a word or two."""
    if job.state is not JobState.DONE or job.result is None:
        return f"{job.state}: {job.reason}"
    result = result_from_json(json.loads(job.result))
    known = result.error is None or result.outcome is Outcome.UNKNOWN
    return str(result.outcome) if known else f"{result.outcome}: {result.error}"


def most_at_once(tool: str, oracle: Oracle, deaths: Sequence[Death]) -> list[str]:
    """The bodies of a tool that lived at the same time where there were most, and how long each had lived by then."""
    changes: list[tuple[float, int, dict[str, Any]]] = []
    for run, line in oracle.begun.items():
        began, ended = line["at"], oracle.ended.get(run, died_at(line, deaths))
        if line["tool"] == tool and ended > began:
            changes += [(began, 1, line), (ended, 0, line)]
    living: dict[str, dict[str, Any]] = {}
    most: list[str] = []
    for at, begins, line in sorted(changes, key=itemgetter(0, 1)):
        if begins:
            living[line["run"]] = line
        else:
            del living[line["run"]]
        if len(living) > len(most):
            most = [f"{one['begun']} for {at - one['at']:.2f} s in {one['pid']}" for one in living.values()]
    return most


def died_at(line: Mapping[str, float], deaths: Iterable[Death]) -> float:
    """Until when a body surely lived that did not come to its end."""
    began, mine = line["at"], (line["pid"], line["parent"])
    return min(
        (max(death.at, began) for death in deaths if death.pid in mine and death.at > began - DYING), default=inf
    )


def over_ration(oracle: Oracle) -> Iterator[str]:
    """Windows in which more bodies of ``ask`` began than may; what came near the beginning of one is left out."""
    windows: Counter[int] = Counter()
    for line in oracle.begun.values():
        first, last = (int(at // RATION.seconds) for at in (line["came"] - SLACK, line["clock"]))
        if line["tool"] == "ask" and first == last:
            windows[first] += 1
    for number in windows.values():
        if number > RATION.amount:
            yield f"{number} bodies of ask in {RATION.seconds:g} s, and {RATION.amount} may be"
