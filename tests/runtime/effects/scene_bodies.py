"""One tool in every way that a body can be run; its ``how`` says how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from callgate import Hook, InvokeContext, ToolContext, ToolError, tool
from callgate.errors import Denied, RetryLater

Ran: TypeAlias = list[str]
Make: TypeAlias = Callable[[Ran, dict[str, Any]], tuple[Any, Sequence[Any]]]
"""From where it notes that it ran, and options, to the tool and hooks of the gate."""


def end(ran: Ran, how: str) -> Any:
    """End as told; what had an effect is noted."""
    if how == "abort":
        raise Denied("not today", no_effect=True)
    if how == "later":
        raise RetryLater(5, no_effect=True)
    if how == "no_effect":
        raise ToolError("Not now.", no_effect=True)
    ran.append(how)
    if how == "tool_error":
        raise ToolError("No such account.")
    if how == "denied":
        raise Denied("by somebody the tool asked")
    if how == "raise":
        raise RuntimeError("the line is dead")
    if how == "exits":
        raise SystemExit(3)
    return {"not json": object(), "not finite": float("inf"), "bad": 7, "large": "done" * 500_000}.get(
        how, f"done {len(ran)}"
    )


def straight(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    @tool(name="work", effect="irreversible", **options)
    async def work(how: str) -> str:
        """Work."""
        done: str = end(ran, how)
        return done

    return work, ()


def with_context(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    @tool(name="work", effect="irreversible", **options)
    async def work(how: str, ctx: ToolContext) -> str:
        """Work."""
        done: str = end(ran, how)
        return done

    return work, ()


def plain(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    @tool(name="work", effect="irreversible", **options)
    def work(how: str) -> str:
        """Work."""
        done: str = end(ran, how)
        return done

    return work, ()


def inline(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    return plain(ran, {**options, "inline": True})


def in_a_task_of_its_own(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    return straight(ran, {**options, "hard_deadline": True})


def of_a_class(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    schema = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}

    @tool(name="work", effect="irreversible", parameters=schema, **options)
    class Work:
        """Work."""

        def __init__(self, arguments: dict[str, Any]) -> None:
            self.how = arguments["how"]

        async def run(self, params: Any = None) -> str:
            done: str = end(ran, self.how)
            return done

    return Work, ()


def in_parts(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    @tool(name="work", effect="irreversible", output_schema={"type": "array", "items": {"type": "string"}}, **options)
    async def work(how: str) -> Any:
        """Work."""
        yield "first"
        yield end(ran, how)

    return work, ()


@dataclass
class Done:
    """What a typed tool returns."""

    text: str


def typed(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^done"}}}

    @tool(name="work", effect="irreversible", output_schema=schema, **options)
    async def work(how: str) -> Done:
        """Work."""
        done: Any = end(ran, how)
        return done if how == "not json" else Done(str(done))

    return work, ()


class Around(Hook):
    """Stands about the tool and does nothing."""

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        return await next()


class Beside(Hook):
    """Stands next to it and does nothing."""

    def will_execute(self, ctx: InvokeContext) -> None: ...

    def did_execute(self, ctx: InvokeContext) -> None: ...

    async def will_validate_output(self, ctx: InvokeContext) -> None: ...


def surrounded(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    return straight(ran, options)[0], [Around(), Beside()]


def beside(ran: Ran, options: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    return with_context(ran, options)[0], [Beside()]


BODIES: list[Make] = [
    straight,
    with_context,
    plain,
    inline,
    in_a_task_of_its_own,
    of_a_class,
    in_parts,
    typed,
    surrounded,
    beside,
]
