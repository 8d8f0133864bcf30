"""The histories of input and output."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from callgate import InvokeContext, Stage
from callgate.errors import StageError
from callgate.hooks.stages import STAGES, May
from callgate.hooks.state.history import Entry
from callgate.providers.clock import FakeClock
from tests.hooks.making import Act, Watch, at, call, echoing, record, refusing

Shown = list[tuple[Stage | None, Any]]


def shown(entries: tuple[Entry, ...]) -> Shown:
    return [(entry.stage, entry.value) for entry in entries]


async def histories(*hooks: Any, arguments: Any, tool: Any = None) -> tuple[Shown, Shown]:
    """Input and output histories as the last hook of an invocation sees them."""
    found: list[tuple[Shown, Shown]] = []

    def read(ctx: InvokeContext) -> None:
        found.append((shown(ctx.input_history), shown(ctx.output_history)))

    await call(tool or echoing(), *hooks, at(Stage.WILL_FINALIZE_INVOKE, read), arguments=arguments)
    return found[0]


def setting(name: str, value: Any) -> Act:
    return lambda ctx: setattr(ctx, name, value)


async def test_entry_0_is_the_raw_input() -> None:
    """Contract 87, C27."""
    inputs, outputs = await histories(arguments='{"a": 1}')
    assert inputs == [(None, '{"a": 1}'), (Stage.WILL_PARSE_INPUT, {"a": 1})]
    assert [value for _, value in outputs] == [{"a": 1}]
    inputs, _ = await histories(arguments={"a": 1})
    assert inputs == [(None, {"a": 1})]


async def test_a_history_can_be_read_in_every_stage() -> None:
    """Contract 87, C27."""
    lengths: dict[Stage, tuple[int, int]] = {}

    def read(stage: Stage) -> Act:
        def act(ctx: InvokeContext) -> None:
            lengths[stage] = len(ctx.input_history), len(ctx.output_history)

        return act

    watch = Watch()
    hooks = [at(stage, read(stage)) for stage in Stage]
    assert (await call(echoing(), watch.hook, *hooks, arguments='{"a": 1}')).ok
    assert set(lengths) == set(watch.stages)
    parsed = list(Stage).index(Stage.WILL_PARSE_INPUT)
    executed = list(Stage).index(Stage.WILL_EXECUTE)
    for stage, (inputs, outputs) in lengths.items():
        position = STAGES[stage].position
        assert inputs == (1 if position <= parsed else 2), stage
        assert outputs == (0 if position <= executed else 1), stage


@pytest.mark.parametrize("stage", [stage for stage in Stage if May.INPUT in STAGES[stage].may])
async def test_an_input_that_is_set_is_an_entry_of_its_stage(stage: Stage) -> None:
    """Contract 87, C16, C27."""
    hook = at(stage, setting("input", {"a": 2}))
    for raw in ({"a": 1}, '{"a": 1}'):
        inputs, outputs = await histories(hook, arguments=raw)
        assert inputs[0] == (None, raw)
        assert inputs[-1] == (stage, {"a": 2})
        parsed = STAGES[stage].position > STAGES[Stage.WILL_PARSE_INPUT].position
        assert len(inputs) == (3 if parsed and isinstance(raw, str) else 2)
        assert [value for _, value in outputs] == [{"a": 2}]


async def test_only_values_that_the_input_had_are_in_its_history() -> None:
    """Contract C27."""
    early = at(Stage.WILL_CREATE_INVOKE_CONTEXT, setting("input", '{"b": 2}'))
    late = at(Stage.WILL_NORMALIZE_INPUT, setting("input", {"c": 3}))
    inputs, _ = await histories(early, late, arguments='{"a": 1}')
    values = [value for _, value in inputs]
    assert values[0] == '{"a": 1}'
    assert values[-1] == {"c": 3}
    assert {"a": 1} not in values
    assert inputs.index((Stage.WILL_CREATE_INVOKE_CONTEXT, '{"b": 2}')) == 1


async def test_every_value_is_set_so_every_change_is_seen() -> None:
    """Contract C27."""

    def change(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match=r"ctx.input = .*will_validate_input"):
            ctx.input["list"].append(2)
        ctx.input = {"list": [*ctx.input["list"], 2]}

    inputs, _ = await histories(at(Stage.WILL_VALIDATE_INPUT, change), arguments={"list": [1]})
    assert [value for _, value in inputs] == [{"list": [1]}, {"list": [1, 2]}]

    def redact(ctx: InvokeContext) -> None:
        with pytest.raises(StageError, match=r"ctx.output = .*will_redact_output"):
            ctx.output["list"].clear()
        ctx.output = {"list": []}

    _, outputs = await histories(at(Stage.WILL_REDACT_OUTPUT, redact), arguments={"list": [1]})
    assert [value for _, value in outputs] == [{"list": [1]}, {"list": []}]


@pytest.mark.parametrize("change", [True, 1.5, "1", [1], None])
async def test_a_change_of_type_is_a_change(change: Any) -> None:
    """Contract C27."""

    def act(ctx: InvokeContext) -> None:
        ctx.input = {**ctx.input, "a": change}

    inputs, _ = await histories(at(Stage.WILL_NORMALIZE_INPUT, act), arguments={"a": 1})
    assert json.dumps([value for _, value in inputs]) == json.dumps([{"a": 1}, {"a": change}])


async def test_entries_are_snapshots() -> None:
    """Contract C27."""
    kept: list[Any] = []

    def first(ctx: InvokeContext) -> None:
        ctx.input = value = {"list": [1]}
        value["list"].append(2)
        kept.append(ctx.input_history)

    def second(ctx: InvokeContext) -> None:
        ctx.input = {"list": [*ctx.input["list"], 3]}
        ctx.input_history[1].value["list"].append("from outside")

    def output(ctx: InvokeContext) -> None:
        ctx.output = value = {"list": ["a"]}
        value["list"].append("b")

    raw = {"list": [0]}
    inputs, outputs = await histories(
        at(Stage.WILL_VALIDATE_INPUT, first),
        at(Stage.WILL_NORMALIZE_INPUT, second),
        at(Stage.DID_EXECUTE, output),
        arguments=raw,
    )
    assert [value["list"] for _, value in inputs] == [[0], [1], [1, 3]]
    assert [entry.value["list"] for entry in kept[0]] == [[0], [1]]
    assert [value["list"] for _, value in outputs] == [[1, 3], ["a"]]
    assert raw == {"list": [0]}


async def test_setting_the_same_value_again_is_no_entry() -> None:
    """Contract C27."""
    again = [at(Stage.WILL_NORMALIZE_INPUT, setting("input", {"a": 1})) for _ in range(3)]
    same = [at(Stage.DID_EXECUTE, setting("output", {"a": 1})) for _ in range(3)]
    inputs, outputs = await histories(*again, *same, arguments={"a": 1})
    assert len(inputs) == len(outputs) == 1
    back = [at(Stage.WILL_NORMALIZE_INPUT, setting("input", {"a": number})) for number in (2, 1)]
    inputs, _ = await histories(*back, arguments={"a": 1})
    assert [value["a"] for _, value in inputs] == [1, 2, 1]


async def test_outputs_that_hooks_set_are_entries_of_their_stages() -> None:
    """Contract 87, C27."""
    stages = [Stage.DID_EXECUTE, Stage.WILL_REDACT_OUTPUT, Stage.WILL_VALIDATE_OUTPUT, Stage.WILL_TRANSFORM_OUTPUT]
    hooks = [at(stage, setting("output", 10 + number)) for number, stage in enumerate(stages)]
    _, outputs = await histories(*hooks, arguments={"n": 2}, tool=record())
    assert outputs[0][1] == 4
    assert outputs[1:] == [(stage, 10 + number) for number, stage in enumerate(stages)]


async def test_a_response_is_an_entry_of_the_stage_that_responded() -> None:
    """Contract 99, C27."""
    executed = STAGES[Stage.DID_EXECUTE].position
    for stage in Stage:
        row = STAGES[stage]
        if May.RESPOND in row.may and stage not in {Stage.DID_CACHE_HIT, Stage.DID_CACHE_MISS, Stage.ON_RETRY}:
            hook = at(stage, lambda ctx: ctx.respond(99))
            _, outputs = await histories(hook, arguments={"n": 2}, tool=record())
            assert outputs[-1] == (stage, 99)
            assert [value for _, value in outputs] == ([4, 99] if row.position >= executed else [99])


async def test_a_failed_invocation_has_no_output() -> None:
    """Contract 101, C27."""
    assert await histories(at(Stage.WILL_EXECUTE, refusing(ValueError())), arguments={"a": 1}) == (
        [(None, {"a": 1})],
        [],
    )


async def test_times_are_on_the_gates_clock() -> None:
    """Contract 87, C27."""
    clock = FakeClock(100.0)
    found: list[Entry] = []

    def late(ctx: InvokeContext) -> None:
        clock.advance(5)
        ctx.input = {"a": 2}
        clock.advance(5)
        found.extend(ctx.input_history)

    await call(echoing(), at(Stage.WILL_NORMALIZE_INPUT, late), arguments={"a": 1}, clock=clock)
    assert [(entry.at, entry.stage) for entry in found] == [(100.0, None), (105.0, Stage.WILL_NORMALIZE_INPUT)]


async def test_what_is_masked_is_masked_in_the_history_too() -> None:
    """Contract C15b, C27, I9."""

    def mask(ctx: InvokeContext) -> None:
        ctx.masked_input = {**ctx.input, "card": "***"}

    inputs, _ = await histories(at(Stage.WILL_REDACT_INPUT, mask), arguments={"card": "4111-1111", "a": 1})
    assert inputs == [(Stage.WILL_REDACT_INPUT, {"card": "***", "a": 1})]


async def test_a_value_that_a_hook_sets_is_kept_as_json() -> None:
    """Contract C27."""
    hook = at(Stage.WILL_REDACT_OUTPUT, setting("output", {"ids": (UUID(int=1),)}))
    fix = at(Stage.WILL_TRANSFORM_OUTPUT, setting("output", 1))
    _, outputs = await histories(hook, fix, arguments={})
    assert outputs[1:] == [(Stage.WILL_REDACT_OUTPUT, {"ids": [str(UUID(int=1))]}), (Stage.WILL_TRANSFORM_OUTPUT, 1)]
