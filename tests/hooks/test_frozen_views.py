"""What a hook reads of a call cannot be changed; what it may change, it sets."""

from __future__ import annotations

import copy
import json
import operator
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Hook, InvokeContext, Outcome, Stage, User
from callgate.errors import StageError
from callgate.hooks import Authorize, Next, permit
from callgate.hooks.stages import RELEASE_OF, STAGES, May
from callgate.hooks.state import frozen_views
from tests.hooks.making import USER, acting, at, call, echoing, record

NESTED = {"n": 2, "list": [1, {"deep": [2]}], "map": {"x": {"y": 1}}}
FREEZING = STAGES[Stage.WILL_AUTHORIZE_INPUT].position
UNREAD = [stage for stage in Stage if STAGES[stage].position <= STAGES[Stage.WILL_PARSE_INPUT].position]
QUIET = [s for s in Stage if s not in {Stage.DID_CACHE_HIT, Stage.ON_RETRY, Stage.ON_GIVE_UP, Stage.ON_ERROR}]

CHANGES_OF_OBJECTS: dict[str, Callable[[Any], Any]] = {
    "set an item": lambda value: operator.setitem(value, "n", 1),
    "delete an item": lambda value: operator.delitem(value, next(iter(value))),
    "update": lambda value: value.update(n=1),
    "pop": lambda value: value.pop(next(iter(value))),
    "pop an item": lambda value: value.popitem(),
    "clear": lambda value: value.clear(),
    "set a default": lambda value: value.setdefault("new", 1),
    "in-place or": lambda value: value.__ior__({"n": 1}),
}
CHANGES_OF_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "set an item": lambda value: operator.setitem(value, 0, 1),
    "set a slice": lambda value: operator.setitem(value, slice(0, 1), []),
    "delete an item": lambda value: operator.delitem(value, 0),
    "append": lambda value: value.append(1),
    "extend": lambda value: value.extend([1]),
    "insert": lambda value: value.insert(0, 1),
    "pop": lambda value: value.pop(),
    "remove": lambda value: value.remove(value[0]),
    "reverse": lambda value: value.reverse(),
    "sort": lambda value: value.sort(),
    "clear": lambda value: value.clear(),
    "in-place add": lambda value: value.__iadd__([1]),
    "in-place multiply": lambda value: value.__imul__(2),
}


def changed(value: Any) -> list[str]:
    """Try every change at every depth; return those that a view let through."""
    let_through: list[str] = []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in list(items):
        let_through += changed(item)
    changes = CHANGES_OF_OBJECTS if isinstance(value, dict) else CHANGES_OF_ARRAYS if isinstance(value, list) else {}
    for name, change in changes.items():
        try:
            change(value)
        except StageError:
            continue
        except (KeyError, IndexError, StopIteration, TypeError):  # an earlier change emptied it
            pass
        let_through.append(name)
    return let_through


def read(ctx: InvokeContext) -> dict[str, Any]:
    """Return all that a hook can read of the values of a call in its stage."""
    values = {"raw_input": ctx.raw_input, "tool_call": ctx.tool_call.arguments, "output": ctx.output}
    if ctx.stage not in UNREAD:
        values["input"] = ctx.input
    if STAGES[ctx.stage].position > STAGES[Stage.WILL_REDACT_INPUT].position:
        values["masked_input"] = ctx.masked_input
    return values


async def changes_let_through(stage: Stage, *, as_text: bool, shadow: bool = False) -> dict[str, list[str]]:
    """Attack everything that a hook of a stage reads, and check that the call did not notice."""
    found: dict[str, list[str]] = {}
    raw = copy.deepcopy(NESTED)

    def attack(ctx: InvokeContext) -> None:
        found.update({name: through for name, value in read(ctx).items() if (through := changed(value))})

    hook = at(stage, attack, mode="shadow") if shadow else at(stage, attack)
    looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)
    result = await call(echoing(), looks, hook, arguments=json.dumps(raw) if as_text else raw)
    if result.output != NESTED or raw != NESTED:
        found["the call"] = ["changed"]
    return found


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "text"])
@pytest.mark.parametrize("stage", QUIET)
async def test_no_value_that_a_hook_reads_can_be_changed_in_place(stage: Stage, as_text: bool) -> None:
    """Contract C16, C27, I2."""
    assert await changes_let_through(stage, as_text=as_text) == {}
    if stage is not Stage.AROUND_EXECUTE:
        assert await changes_let_through(stage, as_text=as_text, shadow=True) == {}


async def test_the_same_attack_changes_values_that_are_no_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: views without their refusal."""
    from callgate.hooks.state import run

    monkeypatch.setattr(run, "input_view", lambda value: value)
    monkeypatch.setattr(run, "output_view", lambda value: value)
    found = await changes_let_through(Stage.WILL_AUTHORIZE_INPUT, as_text=True)
    assert {"input", "the call"} <= found.keys()
    found = await changes_let_through(Stage.ON_METRICS, as_text=True)
    assert {"output", "the call"} <= found.keys()


@pytest.mark.parametrize("view", [frozen_views.input_view, frozen_views.output_view])
def test_the_error_names_every_stage_where_the_value_may_be_set(view: Callable[[Any], Any]) -> None:
    """Design 11.2."""
    power, name = (May.INPUT, "ctx.input") if view is frozen_views.input_view else (May.OUTPUT, "ctx.output")
    with pytest.raises(StageError) as refused:
        view({"n": 1})["n"] = 2
    assert name in str(refused.value)
    assert all((stage in str(refused.value)) is (power in row.may) for stage, row in STAGES.items())


@pytest.mark.parametrize("stage", QUIET)
async def test_no_stage_may_change_the_user(stage: Stage) -> None:
    """Contract 87."""
    refused: list[str] = []
    seen: list[User] = []

    def promote(ctx: InvokeContext) -> None:
        try:
            ctx.user = User("root", roles={"admin"})  # type: ignore[misc]
        except StageError as error:
            refused.append(str(error))

    for mode in ("enforce", *(["shadow"] if stage is not Stage.AROUND_EXECUTE else [])):
        last = at(Stage.WILL_FINALIZE_INVOKE, lambda ctx: seen.append(ctx.user), priority=-1)
        looks = at(Stage.WILL_READ_CACHE, lambda ctx: None)
        assert (await call(record(), looks, at(stage, promote, mode=mode), last)).ok
    assert len(refused) == len(seen)
    assert all("user=" in text for text in refused)
    assert set(seen) == {USER}


async def test_a_policy_sees_what_runs_although_a_hook_before_it_tried_to_change_its_view() -> None:
    """Contract C16: a hook that lowers the amount for the policy cannot raise it for the tool."""

    def lower(ctx: InvokeContext) -> None:
        ctx.input["n"] = 1

    policy = Authorize(permit("small", tools={"double"}, when_input=lambda user, tool, arguments: arguments["n"] <= 5))
    sly = at(Stage.WILL_AUTHORIZE_INPUT, lower, priority=1e6)
    assert (await call(record(), policy, arguments={"n": 999_999})).outcome is Outcome.DENIED
    assert (await call(record(), policy, sly, arguments={"n": 999_999})).outcome is Outcome.DENIED
    assert (await call(record(), policy, arguments={"n": 5})).output == 10


@pytest.mark.parametrize("as_text", [False, True], ids=["object", "text"])
@pytest.mark.parametrize("stage", UNREAD)
async def test_arguments_that_are_not_read_yet_are_refused_with_what_to_read(stage: Stage, as_text: bool) -> None:
    """Contract 87: the same for text and for objects."""
    errors: list[str] = []

    def look(ctx: InvokeContext) -> None:
        with pytest.raises(StageError) as refused:
            ctx.input  # noqa: B018
        errors.append(str(refused.value))
        assert ctx.raw_input == ('{"n": 2}' if as_text else {"n": 2})

    assert (await call(record(), at(stage, look), arguments='{"n": 2}' if as_text else {"n": 2})).output == 4
    assert len(errors) == 1
    assert stage in errors[0]
    assert "ctx.raw_input" in errors[0]


async def test_a_wrapper_gets_a_view_of_the_output_and_returns_a_new_one() -> None:
    """Contract 92, C27."""
    kept: list[Any] = [{"shared": 1}]

    async def same(**arguments: Any) -> Any:
        return kept

    async def spoil(ctx: InvokeContext, next: Next) -> Any:
        output = await next()
        assert changed(output) == []
        return [*output, {"added": True}]

    wrapping = type("Wrapping", (Hook,), {"around_execute": lambda self, ctx, next: spoil(ctx, next)})()
    result = await call(record(same, echoing().definition), wrapping, arguments={})
    assert result.output == [{"shared": 1}, {"added": True}]
    result.output.append("the caller may change its own result")
    result.output[0]["shared"] = 2
    assert kept == [{"shared": 1}]


async def test_an_output_that_a_wrapper_set_before_the_tool_ran_hides_nothing() -> None:
    """Contract 92, C27."""
    seen: list[Any] = []

    async def around(self: Any, ctx: InvokeContext, next: Next) -> Any:
        ctx.output = {"before": "the tool"}
        seen.append(ctx.output)
        output = await next()
        seen.append(ctx.output)
        return output

    early = type("Early", (Hook,), {"around_execute": around})()
    late = at(Stage.WILL_REDACT_OUTPUT, lambda ctx: seen.append(ctx.output))
    result = await call(echoing(), early, late)
    assert seen == [{"before": "the tool"}, {"n": 2}, {"n": 2}]
    assert result.output == {"n": 2}


async def test_what_callers_and_tools_get_is_theirs_to_change() -> None:
    """Contract C16: views stay with hooks."""
    passed: list[Any] = []

    async def take(**arguments: Any) -> Any:
        passed.append(arguments)
        arguments["list"].append("mine")
        return arguments

    def pass_on(ctx: InvokeContext) -> None:
        ctx.output = {"wrapped": ctx.output}

    def normalise(ctx: InvokeContext) -> None:
        ctx.input = {**ctx.input, "list": [*ctx.input["list"], {"more": []}]}

    hooks = [at(Stage.WILL_NORMALIZE_INPUT, normalise), at(Stage.WILL_TRANSFORM_OUTPUT, pass_on)]
    result = await call(record(take, echoing().definition), *hooks, arguments={"list": [{"a": 1}]})
    result.output["wrapped"]["list"][0]["a"] = 2
    assert result.output == {"wrapped": {"list": [{"a": 2}, {"more": []}, "mine"]}}
    passed[0]["list"].clear()


async def test_a_history_names_who_wrote_each_value_at_which_stage_and_when() -> None:
    """Contract 87, C27."""
    times = iter(range(1_000))
    found: list[Any] = []

    class Ticking:
        def time(self) -> float:
            return float(next(times))

        monotonic = time

    def normalise(ctx: InvokeContext) -> None:
        ctx.input = {"n": 3}

    def redact(ctx: InvokeContext) -> None:
        ctx.output = ctx.output + 1

    def look(ctx: InvokeContext) -> None:
        found.append((ctx.input_history, ctx.output_history))

    hooks = [
        at(Stage.WILL_NORMALIZE_INPUT, normalise, name="Normalise"),
        at(Stage.WILL_REDACT_OUTPUT, redact, name="Redact"),
        at(Stage.WILL_AUDIT, look, name="Reader"),
        at(Stage.ON_METRICS, look, name="LateReader"),
    ]
    await call(record(), *hooks, arguments='{"n": 2}', clock=Ticking())
    inputs, outputs = found[0]
    assert found[1] == found[0], "a later reader sees the same history"
    assert [(entry.stage, entry.by, entry.value) for entry in inputs] == [
        (None, "caller", '{"n": 2}'),
        (Stage.WILL_PARSE_INPUT, "parse", {"n": 2}),
        (Stage.WILL_NORMALIZE_INPUT, "Normalise", {"n": 3}),
    ]
    assert [(entry.stage, entry.by, entry.value) for entry in outputs] == [
        (Stage.WILL_EXECUTE, "tool", 6),
        (Stage.WILL_REDACT_OUTPUT, "Redact", 7),
    ]
    instants = [entry.at for entry in (*inputs, *outputs)]
    assert instants == sorted(set(instants))


@pytest.mark.parametrize("value", [False, True, 0, "no", {}, []], ids=repr)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("stage", [s for s in QUIET if s not in {Stage.AROUND_EXECUTE, Stage.WILL_BIND_PROVIDERS}])
async def test_a_value_that_decides_nothing_passes_in_no_stage(stage: Stage, is_async: bool, value: Any) -> None:
    """Contract C1a: a hook that returns False meant to deny."""
    ends: list[tuple[Any, ...]] = []
    end = at(Stage.WILL_FINALIZE_INVOKE, lambda ctx: ends.append(ctx.suppressed), priority=-1)
    hook = acting({stage: lambda ctx: value}, is_async=is_async, priority=1)()
    result = await call(record(), at(Stage.WILL_READ_CACHE, lambda ctx: None), hook, end)
    released = stage in RELEASE_OF.values() or STAGES[stage].section.value == "closing"
    if not released:
        assert result.outcome is (Outcome.DENIED if STAGES[stage].on_failure.value == "deny" else Outcome.ERROR)
        assert result.output is None
        return
    assert result.ok
    (suppressed,) = ends[0]
    assert isinstance(suppressed.error, TypeError)
    assert "decides nothing" in str(suppressed.error)


async def test_the_call_itself_is_a_view_too() -> None:
    """The arguments of ``ctx.tool_call`` are those that the parser reads."""

    def spoil(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match="will_parse_input"):
            ctx.tool_call.arguments["n"] = 666

    given = {"n": 2}
    assert (await call(record(), at(Stage.WILL_CREATE_INVOKE_CONTEXT, spoil), arguments=given)).output == 4
    assert given == {"n": 2}
