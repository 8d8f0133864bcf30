"""What tests of the gate share: tools that tell what they did, an engine that counts, one way to call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from callgate import Gate, Hook, InvokeContext, ToolCall, ToolDefinition, ToolRecord, User
from callgate.tools import Issue
from callgate.tools.definition import Effect
from callgate.tools.record import Style
from callgate.tools.schemas.validation import Validator, compile_schema, from_validate
from tests.harness.gate_options import gate_options

USER = User("u", tenant="acme")
ANYTHING: dict[str, Any] = {"type": "object"}
NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def made(
    execute: Callable[..., Any],
    name: str = "work",
    *,
    parameters: Mapping[str, Any] = NUMBER,
    output: Mapping[str, Any] | None = None,
    effect: Effect = Effect.READ,
    version: str = "1",
    **options: Any,
) -> ToolRecord:
    """A tool that is called with its arguments by name."""
    definition = ToolDefinition(name, "A tool.", parameters, output_schema=output, effect=effect, version=version)
    return ToolRecord(definition, execute, Style.KEYWORDS, **options)


async def double(n: int) -> int:
    return 2 * n


def call(arguments: Any = None, name: str = "work", **options: Any) -> ToolCall:
    """A call of ``work`` with ``{"n": 2}``."""
    return ToolCall(
        id=options.pop("id", "c1"), name=name, arguments={"n": 2} if arguments is None else arguments, **options
    )


class Counting:
    """A validator engine that counts how often it judged arguments."""

    name, version = "counting", "1"

    def __init__(self) -> None:
        self.judged = 0

    def compile(self, schema: Mapping[str, Any], *, trusted: bool) -> Validator:
        """Judges as the default engine does."""
        inner = compile_schema(schema, trusted=trusted)

        def validate(value: Any) -> list[Issue]:
            self.judged += 1
            return inner.issues(value)

        return from_validate(validate, engine=self.name, version=self.version, schema=schema)


class Seeing(Hook):
    """Notes the arguments it saw, and how invocations ended."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.audited: list[Any] = []

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        self.inputs.append(ctx.input)

    def did_audit(self, ctx: InvokeContext) -> None:
        self.audited.append((ctx.outcome and ctx.outcome.value, ctx.run.hydration))


def gate_of(tools: Iterable[Any], *hooks: Any, **options: Any) -> Gate:
    """A gate that asks nobody for permission."""
    return Gate(tools, hooks, allow_unguarded=True, **gate_options(**options))
