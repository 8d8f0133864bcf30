"""Hydration attempts of a gate are logged, and noted by hooks, whether or not the call runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from callgate.hooks.base import name_of
from callgate.hooks.selection import Registration, merge_registrations, why_not
from callgate.providers import logs
from callgate.runtime.options.gate import Options
from callgate.runtime.pipeline.plans import Plans
from callgate.runtime.pipeline.services import Services
from callgate.tools.arguments.hydration import HydrationResult

GRACE = 60.0
"""Seconds in which a call may begin. After them its attempt counts as a call that never ran."""
MAX_WAITING = 1_000
"""Maximum number of attempts that wait for their calls; then all of them count as calls that never ran."""

Waiting: TypeAlias = dict[int, tuple[float, Callable[[], None]]]
"""By the identity of a result: the time of the attempt, and the function that notes it. The function holds the result."""


class HydrationAttempts:
    """The attempts of a gate to hydrate the calls that models propose: it logs them, and hooks note them."""

    def __init__(self, services: Services, plans: Plans, options: Options, waiting: Waiting | None = None) -> None:
        self._services, self._plans, self._options = services, plans, options
        self.waiting: Waiting = {} if waiting is None else waiting

    def are_kept(self) -> bool:
        """Return True if an attempt is logged or noted."""
        return self._options.on_hydration is not None or bool(self._plans.current.noting) or logs.debugs()

    def keep(self, found: HydrationResult) -> HydrationResult:
        """See ``Gate.keep_hydration``."""
        if logs.debugs():
            seen = found.provenance
            logs.emit(
                logs.LogEvent.HYDRATION_ATTEMPTED,
                tool=str(seen.provider_tool_id),
                call_id=seen.provider_call_id,
                success=found.success,
                stage=found.errors[0].stage if found.errors else None,
                wire=seen.wire,
                definition=seen.definition,
                validator=None if seen.validator is None else f"{seen.validator.name} {seen.validator.version}",
                validated=seen.is_validated,
                rules=seen.rules or None,
                repaired=seen.repaired or None,
                no_schema_mode=seen.no_schema_mode,
            )
        at = time.time()
        if (keep := self._options.on_hydration) is not None:
            _give("on_hydration", keep, found, at)
        if noting := self._plans.current.noting:
            self._tell(found, at, every=True)
            if not all(getattr(one.hook.note_hydration, "every", True) for one in noting):
                self.waiting[id(found)] = self._services.monotonic(), partial(self._tell, found, at, every=False)
                if len(self.waiting) > MAX_WAITING:
                    self.flush()
        return found

    def begun(self, call: object) -> None:
        """Drop the attempt of a call that begins: the call has its own records."""
        self.waiting.pop(id(call), None)

    def flush(self, grace: float = 0.0) -> None:
        """Note the attempts whose calls have not begun within *grace* seconds."""
        until = self._services.monotonic() - grace
        for key, (at, note) in list(self.waiting.items()):
            if at <= until and self.waiting.pop(key, None) is not None:
                note()

    def _tell(self, found: HydrationResult, at: float, *, every: bool) -> None:
        """Tell the hooks that note *every* attempt, or those that note the attempts whose calls never ran."""
        noting = (one for one in self._plans.current.noting if self._applies(one, found.call.name))
        for one in merge_registrations(noting):
            if getattr(one.hook.note_hydration, "every", True) is every:
                _give(name_of(one.hook), partial(self._write, one.hook), found, at)

    def _applies(self, one: Registration, tool: object) -> bool:
        """Return True if the hook is for the tool; a hook that is limited to tools or tags takes no unknown tool."""
        registry = self._plans.registry
        if isinstance(tool, str) and tool in registry:
            return why_not(one, registry.get(tool).definition) is None
        return one.tools is None and one.tags is None

    def _write(self, hook: Any, record: dict[str, object]) -> None:
        writing = hook.note_hydration(self._services, record)
        if writing is None:
            return
        home, here = self._services.under_way.home, None
        with suppress(RuntimeError):
            here = asyncio.get_running_loop()
        try:
            if here is not None and home in (None, here):
                self._services.left_behind.start(writing)
            else:  # ``hydrate`` is a plain function, which any thread may call
                (home or asyncio.get_running_loop()).call_soon_threadsafe(self._services.left_behind.start, writing)
        except RuntimeError:  # no event loop can write the record
            writing.close()
            raise


def _give(name: str, keep: Callable[[dict[str, object]], object], found: HydrationResult, at: float) -> None:
    from callgate.tools.arguments.attempts import attempt_record  # few services keep attempts

    try:
        keep(attempt_record(found, at))
    except Exception as error:  # noqa: BLE001  (a record that is not kept must not change the call)
        logs.emit(logs.LogEvent.PROVIDER_FAILED, provider=name, phase="record", error=error)
