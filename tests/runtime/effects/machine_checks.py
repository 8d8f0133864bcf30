"""A gate and the model beside it: what is compared after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant

from callgate import Outcome, ToolResult
from callgate.errors import InvocationError, NotPending
from callgate.providers.stores.effects import OPEN_STATES, EffectRecord, EffectState, SuspensionRecord
from tests.runtime.effects.machine_model import AGAIN, ONCE_A_WHILE, Model, Seen, Waiting, text_of
from tests.runtime.effects.machine_moves import Asked, Handle
from tests.runtime.effects.machine_world import VIEWERS, World

START = 1_000_000.0


def name_new(model: Model, handle: str | None) -> None:
    """A call that waits since this step is known by its handle now."""
    for one in model.waits:
        if not one.id and handle is not None:
            one.id = handle.partition(".")[0]


class Checked(RuleBasedStateMachine):
    """The gate, and the model beside it. *world* is set by ``search``; ``sabotage`` is done to it by whoever looks on."""

    loop: asyncio.AbstractEventLoop
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.world.clock.now = START
        self.model = Model()
        self.model.now = START
        self.handles: list[Handle] = []
        self.asked: list[Asked] = []
        self.versions: dict[str, list[tuple[SuspensionRecord, Waiting]]] = {}
        self.before: dict[tuple[str, str], EffectRecord] = {}
        self.did(self.world.begin())
        self.did(self.world.deploy(self.model.version, self.model.policy, self.model.keys))

    def teardown(self) -> None:
        self.did(self.world.end())

    def did(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def told(self, work: Coroutine[Any, Any, Any]) -> tuple[Seen, Any]:
        """What a caller is told, and the handle if the call waits."""
        try:
            found = await work
        except InvocationError as error:
            if isinstance(error, NotPending):
                shown = (type(error), error.code, error.public, error.http_status, error.correlation_id)
                assert shown == (NotPending, "not_pending", "Nothing waits under this handle.", 404, None)
            return ("raised", type(error).__name__, error.code), None
        if isinstance(found, ToolResult):
            code = None if found.error is None else found.error.code
            pending = found.pending if found.outcome is Outcome.SUSPENDED else None
            return (found.outcome.value, code, found.output, found.replayed), pending and pending.handle
        return ("withdrawn",) if found is None else ("saw", text_of(found.arguments)), None

    def agreed(self, said: Seen, seen: Seen, handle: str | None, tenant: str | None) -> None:
        """Model and gate say the same; a call that waits now is known by its handle."""
        assert seen == said, f"the gate says {seen}, the model {said}"
        if handle is not None:
            self.know(handle, tenant)

    def know(self, handle: str, tenant: str | None) -> None:
        name_new(self.model, handle)
        if handle in [one.text for one in self.handles]:  # a repeat gets the same suspension
            return
        self.handles.append(Handle(handle, handle.partition(".")[0], tenant, self.model.keys[0]))

    def handle(self, which: int) -> Handle:
        """Any that was ever given out."""
        return self.handles[which % len(self.handles)]

    def good(self, which: int, wanted: Callable[[Waiting], bool] = lambda _: True) -> Handle:
        """One that something waits under, and such as is wanted, as far as there are any."""
        open = [one for one in self.handles if self.model.is_open(self.model.find(one.id))]
        known = [one for one in open if wanted(self.model.find(one.id))] or open or self.handles
        return known[which % len(known)]

    def without_key(self, which: int) -> Handle:
        """One that no other call repeats: the rows of a key are a chain, and one that is gone would be a hole in it."""
        known = [one for one in self.handles if not self.model.find(one.id).chained]
        return known[which % len(known)]

    # ------------------------------------------------------------------ past the gate

    def row(self, which: int) -> tuple[tuple[str, str], SuspensionRecord]:
        """The row of a handle, wherever somebody has put it."""
        id = self.without_key(which).id
        return next((at, row) for at, row in self.did(self.world.rows()).items() if at[1].startswith(id[:-1]))

    def tampered(self, at: tuple[str, str], row: SuspensionRecord, tenant: str) -> None:
        self.did(self.world.put_row(at, row, tenant))
        place, waiting = next(pair for pair in enumerate(self.model.waits) if at[1].startswith(pair[1].id[:-1]))
        home = tenant == (waiting.user.tenant or "")
        as_it_was = next((kept for known, kept in self.versions[waiting.id] if home and known == row), None)
        self.model.waits[place] = replace(waiting, broken=True) if as_it_was is None else deepcopy(as_it_was)

    # ------------------------------------------------------------------ after each step

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        rows, effects, shown = self.did(self.look_at_everything())
        assert self.world.ran == self.model.ran
        assert self.world.faults == []
        self.check_what_is_shown(shown)
        self.check_rows(rows)
        self.check_ledger(effects)

    async def look_at_everything(self) -> Any:
        shown = [await self.world.gate.waits.pending(viewer) for viewer in VIEWERS]
        return await self.world.rows(), await self.world.effects(), shown

    def check_what_is_shown(self, shown: list[list[Any]]) -> None:
        """Everybody sees what they may decide, and the exact arguments."""
        assert self.is_shown_by(self.model, shown)

    @staticmethod
    def is_shown_by(model: Any, shown: list[list[Any]]) -> bool:
        """Whether what the people see is what they would see after a model's history."""
        found = [{one.handle.partition(".")[0]: text_of(one.arguments) for one in seen} for seen in shown]
        return found == [{id: text_of(model.find(id).arguments) for id in model.pending(viewer)} for viewer in VIEWERS]

    def check_rows(self, rows: dict[tuple[str, str], SuspensionRecord]) -> None:
        """What nobody has tampered with is in the model's state; every version of it is kept, to be put back."""
        for (_, id), row in rows.items():
            waiting = next((one for one in self.model.waits if one.id == id), None)
            if waiting is None or waiting.broken:
                continue
            assert row.state.value == waiting.state
            known = self.versions.setdefault(id, [])
            if row not in [before for before, _ in known]:
                known.append((row, deepcopy(waiting)))

    def check_ledger(self, after: dict[tuple[str, str], EffectRecord]) -> None:
        """Nothing runs between two steps, and an end is left only by a new claim with a higher token, where that may be."""
        for at, now in after.items():
            assert now.state not in OPEN_STATES
            was = self.before.get(at)
            if was is not None and now.token == was.token:
                assert (now.state, now.receipt, now.input_hash) == (was.state, was.receipt, was.input_hash)
            elif was is not None:
                assert now.token > was.token
                free = was.state is EffectState.NO_EFFECT or was.tool in ONCE_A_WHILE
                assert free or (was.state is EffectState.UNKNOWN and was.tool in AGAIN)
        assert self.before.keys() <= after.keys()
        self.before = after
