"""The ways through the ledger and the approvals: call, repeat, suspend, approve, edit, decline, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from callgate import Approve, Deny, Edit, Gate, Respond
from callgate.errors import CallgateError
from tests.runtime.effects.fault_stories import KEY, Act, Path, Story, Told


def _call(name: str, key: str | None = KEY) -> Act:
    return lambda story, gate: story.ask(gate, name, key)


def _decide(*decisions: tuple[Any, str]) -> Act:
    """Each handle is decided so, by each of these."""

    async def act(story: Story, gate: Gate) -> None:
        for handle in list(story.handles):
            for decision, who in decisions:
                await story.decide(gate, handle, decision, getattr(story, who))

    return act


def _both(*acts: Act) -> Act:
    async def act(story: Story, gate: Gate) -> None:
        for one in acts:
            await one(story, gate)

    return act


YES: tuple[Any, str] = (Approve(), "boss")
NO: tuple[Any, str] = (Deny("no"), "boss")
OTHER: tuple[Any, str] = (Edit({"cents": 8}), "boss")
WORD: tuple[Any, str] = (Respond("Prague"), "user")
TOO: tuple[Any, str] = (Approve(), "chief")


async def _withdraw(story: Story, gate: Gate) -> None:
    for handle in story.handles:
        try:
            await gate.waits.withdraw(handle, story.user)
        except (CallgateError, OSError) as error:
            story.told.append(Told(getattr(error, "code", "failed")))
        else:
            story.told.append(Told("declined"))


async def _at_once(story: Story, gate: Gate) -> None:
    await asyncio.gather(story.ask(gate, "pay"), story.ask(gate, "pay"))


AGAIN = _both(_decide(YES), _call("refund"))
PATHS: Sequence[Path] = (
    Path("call", _call("pay"), again=_call("pay"), least=8),
    Path("repeat", _call("pay"), before=_call("pay"), again=_call("pay"), least=4),
    Path("two at once", _at_once, again=_call("pay"), least=12),
    Path("suspend", _call("refund"), again=AGAIN),
    Path("approve", _decide(YES), before=_call("refund", None), again=_decide(YES), keyed=False, least=10),
    Path("approve under a key", _decide(YES), before=_call("refund"), again=AGAIN, least=10),
    Path(
        "approve by two",
        _decide(YES, TOO),
        before=_call("close"),
        again=_both(_decide(YES, TOO), _call("close")),
        least=12,
    ),
    Path("edit", _decide(OTHER), before=_call("refund"), again=_both(_decide(OTHER), _call("refund")), least=10),
    Path("deny", _decide(NO), before=_call("refund"), again=_decide(NO, YES), never=True, least=3),
    Path("withdraw", _withdraw, before=_call("refund"), again=_both(_withdraw, _decide(YES)), never=True),
    Path("answer a policy", _decide(WORD), before=_call("greet"), again=_both(_decide(WORD), _call("greet")), least=10),
    Path("ask inside", _call("ship"), again=_both(_call("ship"), _decide(WORD)), least=9),
    Path("answer inside", _decide(WORD), before=_call("ship"), again=_both(_decide(WORD), _call("ship")), least=10),
)
