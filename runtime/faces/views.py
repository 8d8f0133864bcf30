"""The read-only methods of a gate, about its tools, plans and calls. They run no tool."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, Unpack

from callgate.errors import InvocationError, UnknownTool
from callgate.hooks.linter import Finding, lint
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.call.calls import Call, Callee, context_of_none, refuse_user
from callgate.runtime.call.options import CallOptions
from callgate.runtime.call.results import run_to_result
from callgate.runtime.faces.explain import DryRun, Explanation, explain
from callgate.runtime.faces.options import Options
from callgate.runtime.plans import Plans
from callgate.runtime.replay.report import ReplayReport, RowSource
from callgate.tools.arguments.attempts import attempt_record
from callgate.tools.arguments.hydration import HydrationResult, Repairer, unknown
from callgate.tools.arguments.repairing import is_repairable
from callgate.tools.calls import ANONYMOUS, ToolCall, ToolResult, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.picking.results import PickResult
from callgate.tools.registry import ToolRegistry


class Views:
    """Read-only methods of ``Gate``."""

    registry: ToolRegistry
    lazy: bool
    _plans: Plans
    _options: Options

    def tools_for(self, user: User = ANONYMOUS) -> list[ToolDefinition]:
        """Return the tools that a user may see, by their roles and by the ``may_see`` of every hook."""
        refuse_user(user)
        return [record.definition for record in self.registry.list() if self._plans.may_see(record, user)]

    def may_see(self, tool: str, user: User = ANONYMOUS) -> bool:
        """Return True if a user may see a tool; False also for a name that no tool has."""
        refuse_user(user)
        return tool in self.registry and self._plans.may_see(self.registry.get(tool), user)

    async def would(
        self, tool: Callee, arguments: object = None, *, user: User = ANONYMOUS, deadline: float | None = None
    ) -> DryRun:
        """Return whether a call would pass now, and why not. The tool does not run.

        Roles, policies, consent, feature flags, the schema and rules of approval are asked. No quota and no permit is
        taken, nothing is suspended, and nothing is recorded but the log event ``call.asked``. Hidden and
        unknown tools get the same answer. The call itself may still be refused: by a rate limit, a concurrency
        limit, or what has changed meanwhile.

        Args:
            tool: as for ``call``.
            arguments: as for ``call``.
            user: the principal of the call.
            deadline: seconds for the hooks; default: those of the tool, else 30.

        Raises:
            GateClosed: as for ``call``.
            TypeError, UnknownTool: as for ``call_many``.
        """
        from callgate.runtime.faces.dry_run import dry_run  # few services ask

        refuse_user(user)
        return await dry_run(self._plans, self.registry, tool, arguments, user, deadline)

    def definitions(self, wire: str | None = None, *, user: User = ANONYMOUS) -> Any:
        """Return the definitions that a user may see, or the request part of a wire such as ``"openai_chat"``."""
        visible = self.tools_for(user)
        if wire is None:
            return visible
        from callgate.runtime.models import codec

        return codec(wire).translate(visible).request

    def pick(
        self, query: object, *, user: User = ANONYMOUS, **options: object
    ) -> Coroutine[Any, Any, list[PickResult]]:
        """Return the tools that fit a query best, among those that the user may see; options as for ``pick_tools``."""
        from callgate.runtime.faces.picking import pick

        return pick(self._plans, self.registry, query, user, options)

    def explain(self, tool: object, *, user: User | None = None) -> Explanation:
        """Return the plan of a tool, with the reason for each hook that it has or leaves out; ``print`` it."""
        return explain(self._plans.of(tool), user)

    def replay(self, rows: RowSource, hooks: Iterable[object]) -> Coroutine[Any, Any, ReplayReport]:
        """Replay recorded calls against other hooks and report the verdicts that change. No tool runs."""
        from callgate.runtime.replay.replay import replay

        return replay(self, rows, hooks)

    def lint(self) -> list[Finding]:
        """Return the findings of the linter about all tools: their plans, and the effects that ``read`` tools call.

        A call of an effect is known once it was made in this process, or where the source of the tool names the tool.
        """
        from callgate.runtime.faces.nested_effects import reads_with_effects  # parses the source of every tool

        plans = [self._plans.of(record.id) for record in self.registry.list()]
        seen = plans[0].host.nested_effects if plans else {}
        return [finding for plan in plans for finding in lint(plan)] + reads_with_effects(self.registry, seen)

    def hydrate(self, call: ToolCall, *, wire: str | None = None, repair: Repairer | None = None) -> HydrationResult:
        """Parse and validate one call; no tool is made or runs. ``call`` takes the result and does not validate again.

        *repair* is called at most once, for other arguments. They are recorded, and ``call`` treats them as ``on_repair``
        of the gate's ``Options`` says: by default they wait for approval.

        Raises:
            TypeError: *repair* is async: write ``await gate.repair(gate.hydrate(call), repair)``.
        """
        try:
            plan = self._plans.of(call.name if isinstance(call.name, str) else "")
        except UnknownTool:
            return self.keep_hydration(unknown(call, wire))
        hydrator = plan.builtins.hydrator(plan.record, self.lazy)
        if self._options.on_hydration is None:
            return hydrator.hydrate(call, wire, repair)
        found = self.keep_hydration(hydrator.hydrate(call, wire))
        if repair is None or not is_repairable(found):
            return found
        return self.keep_hydration(hydrator.repair_now(found, repair))

    async def repair(self, hydrated: HydrationResult, repair: Repairer) -> HydrationResult:
        """Repair a result whose parse or validation failed, with a plain or async function; at most once for a call.

        Any other result is returned unchanged.
        """
        name = hydrated.call.name
        if hydrated.success or not isinstance(name, str) or name not in self.registry:
            return hydrated
        if not is_repairable(hydrated):
            return hydrated
        plan = self._plans.of(name)
        return self.keep_hydration(await plan.builtins.hydrator(plan.record, self.lazy).repair(hydrated, repair))

    def keep_hydration(self, hydrated: HydrationResult) -> HydrationResult:
        """Give the record of an attempt to ``on_hydration`` of the gate's ``Options``; return the result unchanged.

        A failure of that function is logged, and changes nothing.
        """
        if self._options.on_hydration is not None:
            try:
                self._options.on_hydration(attempt_record(hydrated))
            except Exception as error:  # noqa: BLE001  (a record that is not kept must not change the call)
                emit(LogEvent.PROVIDER_FAILED, provider="on_hydration", phase="record", error=error)
        return hydrated

    def hydrate_all(
        self, calls: Iterable[ToolCall], *, wire: str | None = None, repair: Repairer | None = None
    ) -> list[HydrationResult]:
        """Run ``hydrate`` for every call of a response; the results have their order."""
        return [self.hydrate(call, wire=wire, repair=repair) for call in calls]

    async def refuse(
        self, call: ToolCall, error: InvocationError, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """End a call with *error* before anything runs; hooks that observe errors or write records see it."""
        return await run_to_result(context_of_none(self._plans.of_none(), call, user, error, options))

    async def record_elsewhere(
        self, call: ToolCall, *, user: User = ANONYMOUS, **options: Unpack[CallOptions]
    ) -> ToolResult:
        """Record a call that ran elsewhere, such as at the model's provider; no tool and no policy runs."""
        unknown = UnknownTool(f"{call.name!r:.80} ran elsewhere")
        return await run_to_result(context_of_none(self._plans.of_elsewhere(), call, user, unknown, options))

    def deadline_of(self, tool: str) -> float | None:
        """Return the seconds that a call of a tool may take; None without a deadline."""
        return self._plans.of(tool).limit

    def runs_in_parallel(self, call: Call) -> bool:
        """Return True if ``call_many`` may run this call concurrently with others."""
        name: Any = call.call.name if isinstance(call, HydrationResult) else call.name
        return not isinstance(name, str) or name not in self.registry or self.registry.get(name).parallel
