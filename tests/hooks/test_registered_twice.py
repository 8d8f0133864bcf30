"""A hook object that is registered more than once runs once at each stage of a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, Stage, ToolCall, User
from callgate.hooks import (
    Audit,
    Cache,
    CircuitBreaker,
    Concurrency,
    Quota,
    Redact,
    RequireApproval,
    Retry,
    Timeout,
    by_stage,
    collect_hooks_for_stage,
)
from callgate.hooks.linter import Finding
from callgate.hooks.stages import RELEASE_OF
from tests.harness.gate_options import gate_options
from tests.hooks.making import acting, record

ACME, UMBRELLA = User("ann", tenant="acme"), User("bob", tenant="umbrella")


class Seen(Hook):
    """Counts its runs by stage."""

    def __init__(self) -> None:
        self.runs: Counter[Stage] = Counter()


def _counting(stage: Stage) -> Callable[..., Any]:
    async def around(self: Seen, ctx: InvokeContext, next: Any) -> Any:
        self.runs[stage] += 1
        return await next()

    def plain(self: Seen, ctx: InvokeContext) -> None:
        self.runs[stage] += 1

    made = around if stage is Stage.AROUND_EXECUTE else plain
    made.__name__ = stage.value
    return made


for _stage in Stage:
    setattr(Seen, _stage.value, _counting(_stage))

WAYS: dict[str, Callable[[Any], tuple[list[Any], dict[str, Any]]]] = {
    "twice in a list": lambda hook: ([hook, hook], {}),
    "gate and tool": lambda hook: ([hook], {"hooks": [hook]}),
    "twice on the tool": lambda hook: ([], {"hooks": [hook, hook]}),
    "list and by stage": lambda hook: ([hook, by_stage(hook)], {}),
    "by stage and list": lambda hook: ([by_stage(hook), hook], {}),
    "by stage twice": lambda hook: ([by_stage(hook), by_stage(hook)], {}),
    "twice at a stage": lambda hook: ([{stage: [hook, hook] for stage in by_stage(hook)}], {}),
    "gate and tool by stage": lambda hook: ([hook], {"hooks_by_stage": by_stage(hook)}),
    "a release by itself": lambda hook: ([{stage: [hook] for stage in RELEASE_OF.values()}, hook], {}),
}


def gate_of(way: str, hook: Any) -> Gate:
    hooks, on_tool = WAYS[way](hook)
    return Gate([record(**on_tool)], hooks, **gate_options())


async def runs_of(gate: Gate, hook: Seen, user: User = ACME) -> dict[Stage, int]:
    hook.runs.clear()
    assert (await gate.call("double", {"n": 2}, user=user)).output == 4
    return dict(hook.runs)


async def runs_once(hook: Seen) -> dict[Stage, int]:
    async with Gate([record()], [hook], **gate_options()) as gate:
        return await runs_of(gate, hook)


@pytest.mark.parametrize("way", WAYS)
async def test_a_hook_that_is_registered_twice_runs_once_at_each_stage(way: str) -> None:
    """Contract 94."""
    hook = Seen()
    once = await runs_once(hook)
    assert set(once.values()) == {1}
    assert once.keys() >= set(RELEASE_OF) | set(RELEASE_OF.values())
    async with gate_of(way, hook) as gate:
        assert await runs_of(gate, hook) == once


async def test_equal_objects_are_two_hooks() -> None:
    """A gate runs each of two objects."""
    hooks = [Seen(), Seen()]
    async with Gate([record(hooks=hooks[1:])], hooks[:1], **gate_options()) as gate:
        assert await runs_of(gate, hooks[0]) == dict(hooks[1].runs)


async def test_control_without_the_merge_a_hook_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds a plan that keeps each registration."""
    monkeypatch.setattr("callgate.hooks.selection.merge_registrations", list)
    hook = Seen()
    async with gate_of("gate and tool", hook) as gate:
        assert set((await runs_of(gate, hook)).values()) == {2}


async def test_a_hook_class_is_registered_like_an_object() -> None:
    """Contract C1f."""
    made: list[Stage] = []
    cls = acting({Stage.WILL_AUTHORIZE: lambda ctx: made.append(Stage.WILL_AUTHORIZE)})
    async with Gate([record(hooks=[cls])], [cls, cls], **gate_options()) as gate:
        await gate.call("double", {"n": 2})
    assert made == [Stage.WILL_AUTHORIZE]


@pytest.mark.parametrize("limits", [[{"tenants": {"acme"}}, {"tenants": {"umbrella"}}], [{"tenants": {"acme"}}, {}]])
async def test_each_registration_adds_its_tenants(limits: list[dict[str, Any]]) -> None:
    """A hook runs once for the tenants of all its registrations, and for no other."""
    hook = Seen()
    once = await runs_once(hook)
    async with Gate([record()], **gate_options()) as gate:
        undo = [gate.use(hook, **limit) for limit in limits]
        for user in (ACME, UMBRELLA):
            assert await runs_of(gate, hook, user) == once
        other = await runs_of(gate, hook, User("cleo", tenant="initech"))
        assert bool(other) is ({} in limits)
        undo.pop()()
        assert await runs_of(gate, hook, ACME) == once
        assert await runs_of(gate, hook, UMBRELLA) == {}


async def test_a_registration_for_another_tool_does_not_count() -> None:
    """Only registrations that apply to a tool are merged for it."""
    hook = Seen()
    once = await runs_once(hook)
    async with Gate([record()], **gate_options()) as gate:
        gate.use(hook, tools={"other"})
        gate.use(hook, tags={"maths"})
        gate.use(hook, tags={"other"})
        assert await runs_of(gate, hook) == once


async def test_an_order_is_that_of_the_first_registration() -> None:
    """Contract C23."""
    order: list[str] = []

    def named(name: str) -> Hook:
        return acting({Stage.WILL_AUTHORIZE: lambda ctx: order.append(name)})()

    first, second = named("first"), named("second")
    async with Gate([record(hooks=[first])], [first, second, first], **gate_options()) as gate:
        await gate.call("double", {"n": 2})
    assert order == ["first", "second"]
    listed = {"will_authorize": [second, first, second]}
    assert collect_hooks_for_stage("will_authorize", record(hooks=[first]), lambda cls: cls(), listed) == [
        second,
        first,
    ]


# Stock hooks


@pytest.mark.parametrize("way", [way for way in WAYS if way != "a release by itself"])
async def test_attempts_units_and_rows_are_those_of_one_registration(way: str) -> None:
    """Three attempts, one unit, one permit and one row, however often the hooks are listed."""
    attempts, rows = list[int](), list[object]()

    async def flaky(n: int) -> int:
        attempts.append(n)
        raise OSError("down")

    hooks = [Retry(3, wait=lambda _: 0.0), Quota("2/hour"), Concurrency(1), Audit(rows.append)]
    listed: list[Any] = []
    own: list[Any] = []
    own_by_stage: dict[Any, list[Any]] = {}
    for hook in hooks:
        more, on_tool = WAYS[way](hook)
        listed += more
        own += on_tool.get("hooks", [])
        for stage, under in on_tool.get("hooks_by_stage", {}).items():
            own_by_stage.setdefault(stage, []).extend(under)
    made = record(flaky, hooks=own, hooks_by_stage=own_by_stage)
    async with Gate([made], listed, **gate_options()) as gate:
        outcomes = [(await gate.call("double", {"n": 2}, user=ACME)).outcome for _ in range(3)]
    assert len(attempts) == 6
    assert outcomes == ["error", "error", "retry_later"]
    assert len(rows) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(3),
        lambda: Quota("5/minute"),
        lambda: Concurrency(2),
        lambda: Cache(60),
        Audit,
        lambda: Timeout(1),
        CircuitBreaker,
        lambda: Redact("password"),
    ],
)
def test_the_linter_names_two_objects_with_the_same_settings(make: Callable[[], Hook]) -> None:
    """One finding for two objects, none for one object that is listed twice."""

    def findings(*hooks: Hook) -> Iterator[Finding]:
        return (one for one in Gate([record()], hooks).lint() if one.rule == "repeated_policy")

    one, other = make(), make()
    assert list(findings(one, one)) == []
    (found,) = findings(one, other)
    assert found.hook == type(one).__name__


def test_the_linter_is_silent_about_two_policies_with_settings_of_their_own() -> None:
    """Two quotas of other amounts, or rules of approval, are two policies."""
    hooks = [Quota("5/minute"), Quota("100/hour"), Redact("a"), Redact("b"), Audit(), Audit("log")]
    assert not [one for one in Gate([record()], hooks).lint() if one.rule == "repeated_policy"]


@pytest.mark.parametrize("limits", [[{}, {}], [{}, {"tools": {"double"}}], [{"tools": {"double"}}, {}]])
async def test_an_attempt_is_noted_once(limits: list[dict[str, Any]]) -> None:
    """A call that does not run has one row, for each tool that a registration covers."""
    rows = list[object]()
    audit = Audit(rows.append)
    async with Gate([record()], **gate_options()) as gate:
        for limit in limits:
            gate.use(audit, **limit)
        for name in ("double", "no_such_tool"):
            gate.hydrate(ToolCall(name=name, arguments={"n": "no number"}, id=name))
    assert len(rows) == 2


@pytest.mark.parametrize(
    "limits", [[{}, {"tools": {"other"}}], [{"tools": {"other"}}, {}], [{}, {"tenants": {"umbrella"}}]]
)
async def test_a_second_registration_narrows_no_approval(limits: list[dict[str, Any]]) -> None:
    """Contract I3: the last registration of a hook decided alone, and a call ran without approval."""
    approval = RequireApproval()
    async with Gate([record()], **gate_options()) as gate:
        for limit in limits:
            gate.use(approval, **limit)
        result = await gate.call("double", {"n": 2}, user=ACME)
    assert result.outcome == "suspended"
