"""The parameters of ``Gate``, and its ``open`` and ``close``."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from typing import Any

import pytest

import callgate
import callgate.errors
from callgate import (
    Effects,
    Gate,
    GateClosed,
    Hook,
    InvokeContext,
    Jobs,
    Options,
    RegistrationError,
    Sessions,
    Suspensions,
)
from callgate.jobs import EmbeddedJobs
from tests.runtime.gate.making import NUMBER, double, gate_of, made

FOURTEEN = [
    *("tools", "hooks", "mode", "allow_unguarded", "container", "provide", "store", "signing_keys", "deadline"),
    *("sessions", "effects", "suspensions", "jobs", "options"),
]


def test_a_gate_takes_14_parameters() -> None:
    parameters = inspect.signature(Gate).parameters
    assert list(parameters) == FOURTEEN
    assert [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY] == ["tools", "hooks"]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("open", "Gate(allow_unguarded=True)"),
        ("hooks_by_stage", "Gate(hooks=[{stage: [hook, ...]}])"),
        ("session_ttl", "Gate(sessions=Sessions(ttl=...))"),
        ("max_sessions", "Gate(sessions=Sessions(maximum=...))"),
        ("clock", "Gate(options=Options(clock=...))"),
        ("limits", "Gate(options=Options(limits=...))"),
        ("lazy", "Gate(options=Options(lazy=True))"),
        ("validator", "Gate(options=Options(validator=...))"),
        ("resolve", "Gate(options=Options(resolve=...))"),
        ("durable", "Gate(effects=Effects(durable=...))"),
        ("authenticate", "callgate.asgi(gate, authenticate=...)"),
        ("job_options", "Gate(jobs=Jobs(...))"),
        ("policy_version", "Gate(suspensions=Suspensions(policy_version=...))"),
        ("refresh_user", "Gate(suspensions=Suspensions(refresh_user=...))"),
        ("hook", "did you mean 'hooks'?"),
        ("dead_line", "did you mean 'deadline'?"),
    ],
)
def test_another_keyword_is_refused_with_the_line_to_write(wrong: str, line: str) -> None:
    given: dict[str, Any] = {wrong: None}
    with pytest.raises(TypeError) as caught:
        Gate([], **given)
    assert line in str(caught.value)


@pytest.mark.parametrize("kind", [Sessions, Effects, Suspensions, Jobs, Options])
def test_options_are_frozen_slotted_keyword_only_and_exported(kind: Any) -> None:
    made = kind()
    name = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, None)
    with pytest.raises(TypeError):
        kind(None)
    assert not hasattr(made, "__dict__")
    assert kind.__name__ in vars(callgate)["__all__"]
    assert all(field.name in kind.__doc__ for field in dataclasses.fields(made))


async def test_hooks_may_be_listed_by_stage_among_the_others() -> None:
    """Contract 94."""
    seen: list[str] = []

    class Says(Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def will_execute(self, ctx: InvokeContext) -> None:
            seen.append(f"{self.name} before")

        def did_execute(self, ctx: InvokeContext) -> None:
            seen.append(f"{self.name} after")

    async with gate_of([made(double)], Says("whole"), {"will_execute": [Says("listed")]}) as gate:
        await gate.invoke("work", {"n": 1})
    assert seen == ["whole before", "listed before", "whole after"]


@pytest.mark.parametrize("given", [EmbeddedJobs, lambda: "embedded", lambda: Jobs(engine=EmbeddedJobs()), Jobs])
async def test_jobs_are_options_an_engine_or_the_name_of_one(given: Any) -> None:
    async with gate_of([made(double)], jobs=given()) as gate:
        assert isinstance(gate.jobs.backend, EmbeddedJobs)
        assert (await (await gate.submit("work", {"n": 2}))).output == 4


async def test_open_and_close_are_methods() -> None:
    gate = gate_of([made(double)])
    assert await gate.open() is gate
    assert gate.is_open
    with pytest.raises(RegistrationError, match=r"open already: .*close\(\) it first"):
        await gate.open()
    assert await gate.invoke("work", {"n": 2}) == 4
    await gate.close()
    await gate.close()
    with pytest.raises(GateClosed):
        await gate.invoke("work", {"n": 2})
    async with gate:
        assert await gate.invoke("work", {"n": 2}) == 4
    assert not gate.is_open


async def test_a_gate_that_did_not_open_can_be_closed_and_opened() -> None:
    fails = True

    def factory() -> str:
        if fails:
            raise OSError("not yet")
        return "made"

    gate = gate_of([made(double)], provide={str: factory})
    with pytest.raises(callgate.errors.ProviderError):
        await gate.open()
    await gate.close()
    fails = False
    async with gate:
        assert gate.is_open


async def test_of_two_that_open_at_once_one_is_refused() -> None:
    async def slow() -> str:
        await asyncio.sleep(0)
        return "made"

    gate = gate_of([made(double)], provide={str: slow})
    first, second = await asyncio.gather(gate.open(), gate.open(), return_exceptions=True)
    assert first is gate
    assert isinstance(second, RegistrationError)
    await gate.close()


def test_the_sync_gate_has_the_same_open_and_close() -> None:
    gate = gate_of([made(double, parameters=NUMBER)])
    tools = gate.sync().open()
    try:
        assert tools.is_open
        assert tools.call("work", {"n": 2}).output == 4
    finally:
        tools.close()
    tools.close()
    assert not tools.is_open
    assert not gate.is_open
