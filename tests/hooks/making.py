"""What tests of hooks and of the lifecycle share: one tool, hooks made on the spot, one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

from callgate import Gate, Hook, InvokeContext, Stage, ToolCall, ToolDefinition, ToolRecord, ToolResult, User
from callgate.hooks.plan import Plan
from callgate.tools.definition import Effect
from callgate.tools.record import Style
from tests.harness.gate_options import gate_options
from tests.world import USER as USER  # noqa: PLC0414  (many files import it from here)

Act = Callable[[InvokeContext], Any]

PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
DEFINITION = ToolDefinition(
    "double", "Twice a number.", PARAMETERS, output_schema={"type": "integer"}, effect=Effect.READ, tags={"maths"}
)
ANYTHING = ToolDefinition("echo", "What it was given.", {"type": "object"}, effect=Effect.READ)


async def double(n: int) -> int:
    return 2 * n


async def echo(**arguments: Any) -> Any:
    return arguments


def record(execute: Callable[..., Any] = double, definition: ToolDefinition = DEFINITION, **options: Any) -> ToolRecord:
    """A tool with little about it; compiled validators are shared, so one a test is cheap."""
    return ToolRecord(definition, execute, Style.KEYWORDS, **options)


def echoing(**options: Any) -> ToolRecord:
    """A tool that takes anything and gives it back."""
    return record(echo, ANYTHING, **options)


def acting(acts: Mapping[Stage, Act], *, is_async: bool = False, **options: Any) -> type[Hook]:
    """A hook class that does each act in its stage; ``around_execute`` goes on, unless the act returned something."""

    def method(act: Act) -> Callable[..., Any]:
        async def asynchronous(self: Any, ctx: InvokeContext, *rest: Any) -> Any:
            answer = act(ctx)
            answer = await answer if inspect.isawaitable(answer) else answer
            return await rest[0]() if rest and answer is None else answer

        def plain(self: Any, ctx: InvokeContext, *rest: Any) -> Any:
            answer = act(ctx)
            return rest[0]() if rest and answer is None else answer

        return asynchronous if is_async else plain

    methods = {stage.value: method(act) for stage, act in acts.items()}
    name = options.pop("name", "Acting")
    return cast("type[Hook]", type(name, (Hook,), {**methods, **options}))


def at(stage: Stage, act: Act, **options: Any) -> Hook:
    """A hook object that does one thing in one stage."""
    return acting({stage: act}, **options)()


def refusing(error: BaseException) -> Act:
    """An act that raises."""

    def act(ctx: InvokeContext) -> None:
        raise error

    return act


@cache
def _watching(stages: tuple[Stage, ...]) -> type[Hook]:
    """A hook class that tells its ``watch`` what it sees."""

    def method(stage: Stage) -> Callable[..., Any]:
        def note(self: Any, ctx: InvokeContext, *rest: Any) -> Any:
            self.watch.note(stage, ctx)
            return rest[0]() if rest else None

        return note

    return cast("type[Hook]", type("Watch", (Hook,), {stage.value: method(stage) for stage in stages}))


class Watch:
    """Records which stages it saw, and the context of the last invocation."""

    def __init__(self, *stages: Stage, **options: Any) -> None:
        self.stages: list[Stage] = []
        self.hook = _watching(stages or tuple(Stage))()
        vars(self.hook).update(options, watch=self)
        self._ctx: InvokeContext | None = None

    @property
    def ctx(self) -> InvokeContext:
        assert self._ctx is not None, "no stage was reached"
        return self._ctx

    def note(self, stage: Stage, ctx: InvokeContext) -> None:
        self.stages.append(stage)
        self._ctx = ctx


async def call(
    tool: Any, *hooks: Any, arguments: Any = None, user: User = USER, trace: bool = False, **options: Any
) -> ToolResult:
    """One call through a gate of its own."""
    async with Gate([tool], hooks, allow_unguarded=True, **gate_options(**options)) as gate:
        given = {"n": 2} if arguments is None else arguments
        return await gate.call(ToolCall(id="c1", name=_name(gate), arguments=given), user=user, trace=trace)


async def invoke(tool: Any, *hooks: Any, arguments: Any = None, user: User = USER, **options: Any) -> Any:
    """One ``gate.invoke`` through a gate of its own."""
    async with Gate([tool], hooks, allow_unguarded=True, **gate_options(**options)) as gate:
        return await gate.invoke(_name(gate), {"n": 2} if arguments is None else arguments, user=user)


def plan_of(tool: ToolRecord, *hooks: Any, trace: bool = False, **options: Any) -> Plan:
    """What a gate compiles for a tool."""
    gate = Gate([tool], hooks, allow_unguarded=True, **gate_options(**options))
    return gate._plans.of(tool.id, trace=trace)


def _name(gate: Gate) -> str:
    return gate.registry.names[0]
