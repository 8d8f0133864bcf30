"""The outcome of every call of a run, compared with the bank's payments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from callgate import Gate, JobHandle, Outcome
from callgate.jobs import JobStatus
from callgate.stores import EffectState
from examples.worker_desk.desk import Bank


@dataclass(frozen=True)
class Asked:
    """A submitted call: its tool and its order."""

    tool: str
    order: str
    job: JobHandle


@dataclass
class Tally:
    """The counts of a run.

    ``lost``: calls without a result, and successful refunds without a payment. ``twice``: repeated payments of orders,
    the first payment of each excluded."""

    submitted: int
    seconds: float
    outcomes: Counter[str] = field(default_factory=Counter)
    again: int = 0
    intents: Counter[str] = field(default_factory=Counter)
    paid: int = 0
    lost: list[str] = field(default_factory=list)
    twice: int = 0

    @property
    def is_sound(self) -> bool:
        """Return True if no call was lost and no refund ran twice."""
        return not self.lost and not self.twice

    def print(self, console: Console) -> None:
        """Print the tally."""
        table = Table(box=box.SIMPLE, show_header=False, title="The tally", title_justify="left")
        rows = [
            ("submitted", f"{self.submitted} calls"),
            ("done", _told(self.outcomes)),
            ("delivered again", f"{self.again} calls"),
            ("effects intended", f"{self.intents.total()} in the ledger: {_told(self.intents)}"),
            ("effects that took place", f"{self.paid} by the bank's file"),
            ("lost", str(len(self.lost))),
            ("twice", str(self.twice)),
            ("took", f"{self.seconds:.1f} s, {self.submitted / self.seconds:.0f} calls/s, the kill included"),
        ]
        for name, told in rows:
            table.add_row(Text(name), Text(told, "" if name not in {"lost", "twice"} or told == "0" else "bold red"))
        console.print(table)
        for one in self.lost[:10]:
            console.print(Text(f"lost: {one}", "bold red"))


async def tally(gate: Gate, asked: Sequence[Asked], bank: Bank, seconds: float) -> Tally:
    """Read every call from the store, and every refund from the bank."""
    paid = Counter(bank.paid())
    found = Tally(len(asked), seconds, paid=paid.total(), twice=sum(times - 1 for times in paid.values()))
    for one in asked:
        status = await one.job.status()
        found.again += status.attempts > 1
        outcome = await _outcome(one, status)
        found.outcomes[outcome] += 1
        if outcome == status.state:
            found.lost.append(f"{one.tool} {one.order} is {outcome}: {status.reason or 'no reason was recorded'}")
        elif one.tool == "refund" and outcome == Outcome.SUCCESS and not paid[one.order]:
            found.lost.append(f"{one.tool} {one.order} is {outcome}, and the bank has paid nothing")
    for _, effect in await gate.store.effects.list(None, limit=len(asked) + 1):
        if effect.state is not EffectState.NO_EFFECT:
            found.intents[effect.state] += 1
    return found


async def _outcome(one: Asked, status: JobStatus) -> str:
    """Return the outcome of a job; without a result, its state."""
    return (await one.job).outcome if status.state == "done" else status.state


def _told(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.most_common()) or "none"
