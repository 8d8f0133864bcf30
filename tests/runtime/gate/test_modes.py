"""Production mode refuses once and lists everything missing; development mode opens and reports on stderr."""

from __future__ import annotations

from typing import Any

import pytest

from callgate import Approval, Effects, Gate, Hook, InvokeContext, RegistrationError, ToolError, tool


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fails() -> str:
    """Fail."""
    raise ZeroDivisionError("the reason")


@tool(effect="irreversible", requires_approval=Approval(roles={"manager"}))
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


class Allow(Hook):
    def will_authorize(self, ctx: InvokeContext) -> None:
        """Allow every call."""


async def refusal(gate: Gate) -> str:
    with pytest.raises(RegistrationError) as caught:
        await gate.open()
    assert not gate.is_open
    return str(caught.value)


async def test_production_refuses_once_with_everything_that_is_missing_and_both_ways_on() -> None:
    """Contract 96, I6."""
    said = await refusal(Gate([add, pay, look]))
    permit, store, keys = (line for line in said.splitlines() if line.startswith("- "))
    assert "tool 'add' (effect undeclared)." in permit  # approvers authorise the other
    assert "tools 'add' (effect undeclared), 'pay' (effect irreversible)" in store
    assert all(way in permit for way in ("hooks=[Authorize(...)]", 'effect="read"', "allow_unguarded=True"))
    assert all(way in store for way in ('store="sqlite:///file.db"', 'effect="read"', "effects=Effects(durable=False)"))
    assert "'pay'" in keys
    assert "signing_keys=[...]" in keys
    assert 'Gate([...], mode="development")' in said
    assert "look" not in said


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, {"hook", "store"}),
        ({"allow_unguarded": True}, {"store"}),
        ({"hooks": [Allow()]}, {"store"}),
        ({"effects": Effects(durable=False)}, {"hook"}),
    ],
)
async def test_what_is_given_is_not_missing(options: dict[str, Any], missing: set[str]) -> None:
    lines = [line for line in (await refusal(Gate([add], **options))).splitlines() if line.startswith("- ")]
    assert {"hook" if "no hook authorises" in line else "store" for line in lines} == missing


async def test_production_opens_with_all_of_it() -> None:
    async with Gate([add], [Allow()], effects=Effects(durable=False)) as gate:
        assert await gate.invoke(add, {"a": 1, "b": 2}) == 3


async def test_many_tools_are_named_up_to_a_number() -> None:
    tools = [tool(name=f"t{number}")(lambda: 1) for number in range(9)]
    assert "'t4' (effect undeclared) and 4 more" in await refusal(Gate(tools))


async def test_development_mode_opens_unguarded_in_memory_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with Gate([add, pay], mode="development") as gate:
        assert await gate.invoke("add", {"a": 1, "b": 2}) == 3
        assert (await gate.call(pay, {"cents": 5})).outcome == "suspended"
    err = capsys.readouterr().err
    assert err.startswith("callgate: development mode, not for production")
    assert "plan of add" in err
    assert "plan of pay" in err


async def test_development_mode_prints_lint_findings(capsys: pytest.CaptureFixture[str]) -> None:
    class Takes(Hook):
        def will_acquire_quota(self, ctx: InvokeContext) -> None:
            """Take, and give nothing back."""

    async with Gate([look], [Takes()], mode="development"):
        pass
    assert "lint acquire_without_release: look: " in capsys.readouterr().err


async def test_development_mode_prints_the_tracebacks_of_tools_and_hooks(capsys: pytest.CaptureFixture[str]) -> None:
    class Breaks(Hook):
        on_failure = "ignore"

        def did_execute(self, ctx: InvokeContext) -> None:
            raise LookupError("in a hook")

    class Denies(Hook):
        tools = ("add",)

        def will_authorize(self, ctx: InvokeContext) -> None:
            ctx.abort("a decision")

    @tool
    async def sorry() -> str:
        """Refuse in words."""
        raise ToolError("a decision, too")

    async with Gate([fails, look, add, sorry], [Breaks(), Denies()], mode="development") as gate:
        result = await gate.call(fails)
        assert (await gate.call(look)).ok
        assert not (await gate.call(add, {"a": 1, "b": 2})).ok
        assert not (await gate.call(sorry)).ok
    err = capsys.readouterr().err
    assert "ZeroDivisionError: the reason" in err
    assert "LookupError: in a hook" in err
    assert "a decision" not in err
    assert result.error is not None
    assert "reason" not in result.error.public


async def test_production_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The control."""
    async with Gate([fails], allow_unguarded=True, effects=Effects(durable=False)) as gate:
        await gate.call(fails)
    assert capsys.readouterr().err == ""


def test_an_unknown_mode_is_refused_and_names_both() -> None:
    wrong: Any = "dev"
    with pytest.raises(ValueError, match=r"production.*development"):
        Gate([], mode=wrong)
