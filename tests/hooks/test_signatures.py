"""Hooks that the gate could not call are refused when they are registered, with the line to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from callgate import Gate, Hook, InvokeContext, Options, Provide, Stage, on
from callgate.errors import HookError
from callgate.hooks.selection import register
from tests.hooks.making import record


class Db:
    """What a hook takes."""


def nothing() -> Any: ...
def context(ctx: Any) -> Any: ...
def more(ctx: Any, extra: Any) -> Any: ...
def both(ctx: Any, next: Any) -> Any: ...
def three(ctx: Any, next: Any, extra: Any) -> Any: ...
def anything(*args: Any, **kwargs: Any) -> Any: ...
def by_default(ctx: Any, extra: Any = None) -> Any: ...
def marked(ctx: Any, db: Annotated[Db, Provide[Db]]) -> Any: ...
def marked_around(ctx: Any, next: Any, *, db: Annotated[Db, Provide[Db]]) -> Any: ...
def keyword(ctx: Any, *, extra: Any) -> Any: ...


PLAIN = {context, anything, by_default, marked}
AROUND = {both, anything, marked_around, by_default, more}
SHAPES: list[Callable[..., Any]] = [
    nothing, context, more, both, three, anything, by_default, marked, marked_around, keyword,
]  # fmt: skip


def as_object(stage: Stage, function: Callable[..., Any]) -> object:
    return type("Odd", (Hook,), {stage.value: staticmethod(function)})()


def as_class(stage: Stage, function: Callable[..., Any]) -> object:
    return type("Odd", (Hook,), {stage.value: staticmethod(function)})


def as_function(stage: Stage, function: Callable[..., Any]) -> object:
    return on(stage)(function)


@pytest.mark.parametrize("make", [as_object, as_class, as_function])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stage_method_that_cannot_be_called_is_refused_at_registration(
    shape: Callable[..., Any], make: Callable[..., Any]
) -> None:
    for stage in Stage:
        if shape in (AROUND if stage is Stage.AROUND_EXECUTE else PLAIN):
            register(make(stage, shape), "here")
            continue
        text = rf"{stage.value}.* cannot be called with \(ctx.*: write `(async )?def {stage.value}\("
        with pytest.raises(HookError, match=text):
            register(make(stage, shape), "here")


@pytest.mark.parametrize("kind", ["object", "class"])
def test_a_method_without_self_or_with_a_further_parameter_is_refused(kind: str) -> None:
    class NoSelf(Hook):
        def will_authorize() -> None: ...  # type: ignore[misc, override]  # the mistake itself

    class Further(Hook):
        async def around_execute(self, ctx: InvokeContext, next: Any, tool: Any) -> Any: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    for cls in (NoSelf, Further):
        with pytest.raises(HookError, match=r"write `.*\(self, ctx"):
            register(cls() if kind == "object" else cls, "here")


class Needs(Hook):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def will_authorize(self, ctx: InvokeContext) -> None: ...


class Takes(Hook):
    def __init__(self, db: Annotated[Db, Provide[Db]], limit: int = 1) -> None:
        self.db, self.limit = db, limit

    def will_authorize(self, ctx: InvokeContext) -> None: ...


async def test_a_hook_class_is_made_without_arguments_or_is_refused() -> None:
    with pytest.raises(HookError, match=r"constructor takes \(limit: .*register an object, Needs\(\.\.\.\)"):
        Gate([record()], [Needs])
    gates = (
        Gate([record()], [Needs], options=Options(resolve=lambda cls: cls(3))),
        Gate([record()], [Needs(3), Takes], provide={Db: Db}),
    )
    for gate in gates:
        async with gate:
            assert await gate.invoke("double", {"n": 2}) == 4
