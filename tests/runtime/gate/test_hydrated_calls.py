"""A hydrated call given to the gate: what is not done again, for whom nobody vouches, and how a failed one ends."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Denied, Gate, HydrationResult, InvokeContext, Limits, Options, Outcome, ToolCall, tool
from callgate.tools.arguments.hydration import HydrationError
from callgate.tools.values import freeze
from tests.runtime.gate.making import NUMBER, USER, Counting, Seeing, call, double, gate_of, made


def mutated(found: HydrationResult) -> HydrationResult:
    assert found.arguments is not None
    dict.__setitem__(found.arguments, "n", 666)
    return found


def replaced(**changes: Any) -> Callable[[HydrationResult], HydrationResult]:
    return lambda found: dataclasses.replace(found, **changes)


def forged(found: HydrationResult) -> HydrationResult:
    arguments = freeze({"n": 666})
    return HydrationResult(found.call, True, found.provenance, arguments, token="0" * 64)


ALTERED: dict[str, Callable[[HydrationResult], HydrationResult]] = {
    "changed in place": mutated,
    "changed in place to something odd": replaced(arguments={"n": {1}}),
    "other arguments": replaced(arguments={"n": 666}),
    "other call": replaced(call=call({"n": 2}, id="c2")),
    "no token": replaced(token=None),
    "forged": forged,
    "pickled": lambda found: pickle.loads(pickle.dumps(found)),
    "copied": copy.copy,
    "copied in depth": copy.deepcopy,
}


async def test_a_hydrated_call_is_neither_parsed_nor_validated_again_and_hooks_still_run() -> None:
    """Contract 44, 53, 55, I2."""
    engine, seeing = Counting(), Seeing()
    async with gate_of([made(double)], seeing, validator=engine) as gate:
        found = gate.hydrate(call('{"n": 2}'))
        assert engine.judged == 1
        result = await gate.call(found, user=USER)
        assert (result.output, engine.judged) == (4, 1)
        assert seeing.inputs == [{"n": 2}]
        assert seeing.audited == [("success", found)]
        assert result.provenance["hydration"] == found.provenance
        assert result.provenance["validated"] is True
        await gate.call(call('{"n": 2}'), user=USER)
        assert engine.judged == 2


@pytest.mark.parametrize("how", ALTERED)
async def test_an_altered_result_is_vouched_for_by_nobody_and_the_call_is_read_again(how: str) -> None:
    """Contract 44, I2."""
    engine, seeing = Counting(), Seeing()
    async with gate_of([made(double)], seeing, validator=engine) as gate:
        altered = ALTERED[how](gate.hydrate(call('{"n": 2}')))
        engine.judged = 0
        result = await gate.call(altered, user=USER)
    assert engine.judged == 1
    assert result.output == 4, "what the call says, not what somebody made of it"
    assert seeing.inputs == [{"n": 2}]
    assert result.provenance["hydration"] is None


async def test_arguments_changed_after_hydration_do_not_slip_by_when_the_call_itself_was_changed() -> None:
    """Contract 44, I2."""
    given: dict[str, Any] = {"n": 2}
    engine = Counting()
    async with gate_of([made(double)], validator=engine) as gate:
        found = gate.hydrate(call(given))
        given["n"] = "not a number"
        result = await gate.call(found, user=USER)
        assert result.outcome is Outcome.INVALID
        assert engine.judged >= 2


async def test_a_hook_cannot_change_vouched_arguments_on_their_way() -> None:
    """Contract 44, I2."""

    class Meddling(Seeing):
        def will_authorize(self, ctx: InvokeContext) -> None:
            arguments: Any = ctx.run.hydration and ctx.run.hydration.arguments
            arguments["n"] = 666

    async with gate_of([made(double)], Meddling()) as gate:
        result = await gate.call(gate.hydrate(call()), user=USER)
    assert result.outcome is Outcome.DENIED


async def test_another_version_of_the_tool_reads_the_call_again() -> None:
    """Contract 50, I2, I5."""
    engine = Counting()
    async with gate_of([made(double)], validator=engine) as gate:
        found = gate.hydrate(call())
        gate.add(made(double, version="2"), replace=True)
        engine.judged = 0
        assert (await gate.call(found, user=USER)).output == 4
        assert engine.judged == 1


async def test_another_schema_under_the_same_name_refuses_what_the_old_one_took() -> None:
    """Contract 44, 50, I2."""
    strict = {**NUMBER, "properties": {"n": {"type": "integer", "maximum": 1}}}
    async with gate_of([made(double)]) as gate:
        found = gate.hydrate(call())
        gate.add(made(double, parameters=strict), replace=True)
        assert (await gate.call(found, user=USER)).outcome is Outcome.INVALID


async def test_another_engine_reads_the_call_again() -> None:
    """Contract 18, 48."""
    engine = Counting()
    async with gate_of([made(double)]) as one, gate_of([made(double)], validator=engine) as other:
        assert (await other.call(one.hydrate(call()), user=USER)).output == 4
        assert engine.judged == 1


async def test_a_normalising_hook_changes_a_hydrated_call_and_it_is_validated_again() -> None:
    """Contract 44, C16."""

    class Negating(Seeing):
        def will_normalize_input(self, ctx: InvokeContext) -> None:
            ctx.input = {**ctx.input, "n": -ctx.input["n"]}

    engine = Counting()
    async with gate_of([made(double)], Negating(), validator=engine) as gate:
        found = gate.hydrate(call())
        result = await gate.call(found, user=USER)
        assert result.output == -4
        assert found.arguments == {"n": 2}
        assert engine.judged > 1


@pytest.mark.parametrize(
    ("arguments", "stage"), [("nonsense", "parse"), ('{"n": "x"}', "validate"), ('{"n": 2, "m": 1}', "validate")]
)
async def test_a_failed_result_takes_the_error_path_and_is_audited(arguments: str, stage: str) -> None:
    """Contract 54, 104, I7."""
    ran = []

    async def body(n: int) -> int:
        ran.append(n)
        return n

    seeing = Seeing()
    async with gate_of([made(body)], seeing) as gate:
        found = gate.hydrate(call(arguments))
        assert [error.stage for error in found.errors] == [stage]
        result = await gate.call(found, user=USER)
    assert result.outcome is Outcome.INVALID
    assert result.error is not None
    assert result.error.public
    assert [outcome for outcome, _ in seeing.audited] == ["invalid"]
    assert not ran
    assert result.provenance["validated"] is False


async def test_a_failed_result_of_an_unknown_tool_has_its_result_too() -> None:
    """Contract 54, C10a."""
    async with gate_of([made(double)]) as gate:
        result = await gate.call(gate.hydrate(call(name="nope")), user=USER)
    assert (result.call_id, result.tool, result.outcome) == ("c1", "nope", Outcome.INVALID)
    assert result.error is not None
    assert result.error.code == "unknown_tool"


async def test_a_denied_hydrated_call_does_not_run() -> None:
    """Contract 55, I6, I7."""

    class Refusing(Seeing):
        def will_authorize_input(self, ctx: InvokeContext) -> None:
            raise Denied("no")

    async def body(n: int) -> int:
        raise AssertionError("ran")

    async with gate_of([made(body)], Refusing()) as gate:
        assert (await gate.call(gate.hydrate(call()), user=USER)).outcome is Outcome.DENIED


def test_a_closed_gate_hydrates_because_nothing_runs() -> None:
    """Contract 55."""
    assert gate_of([made(double)]).hydrate(call()).success


async def test_a_failed_result_fails_even_when_the_call_would_pass_today() -> None:
    """Contract 53, 54."""
    seeing = Seeing()
    async with gate_of([made(double)], seeing) as gate:
        found = gate.hydrate(call())
        error = HydrationError("instantiate", "The tool refused the arguments.", {"code": "instantiate"})
        failed = dataclasses.replace(found, success=False, errors=(error,), token=None)
        result = await gate.call(failed, user=USER)
    assert result.outcome is Outcome.INVALID
    assert result.error is not None
    assert result.error.code == "instantiate"
    assert [outcome for outcome, _ in seeing.audited] == ["invalid"]


async def test_the_audit_sees_the_provenance_of_a_failed_result() -> None:
    """Contract 54."""
    seeing = Seeing()
    async with gate_of([made(double)], seeing) as gate:
        found = gate.hydrate(call("nonsense"))
        result = await gate.call(found, user=USER)
    assert seeing.audited == [("invalid", found)]
    assert result.provenance["hydration"] == found.provenance


def test_a_lazy_gate_says_that_its_validators_were_compiled_at_run_time() -> None:
    """Contract 18, 48."""
    validator = (
        Gate([made(double)], allow_unguarded=True, options=Options(lazy=True)).hydrate(call()).provenance.validator
    )
    assert validator is not None
    assert validator.compiled_at == "run-time"


def test_the_gates_own_limits_hold_for_hydration() -> None:
    """Contract 47."""
    found = Gate([made(double)], allow_unguarded=True, options=Options(limits=Limits(max_bytes=4))).hydrate(
        call('{"n": 2}')
    )
    assert [error.stage for error in found.errors] == ["parse"]


@pytest.mark.parametrize("sent", [None, "", " "])
@pytest.mark.parametrize("hydrated", [False, True])
async def test_an_irreversible_tool_without_parameters_runs_where_a_wire_sends_no_arguments(
    sent: Any, hydrated: bool
) -> None:
    """Contract 45, C10d."""

    @tool(effect="irreversible")
    async def stop() -> str:
        """Stop everything."""
        return "stopped"

    async with gate_of([stop], durable=False) as gate:
        asked = ToolCall(name="stop", arguments=sent)
        result = await gate.call(gate.hydrate(asked) if hydrated else asked, user=USER)
    assert (result.output, result.error) == ("stopped", None)


# ------------------------------------------------------------------ the tool of a result


def styles() -> list[Any]:
    @tool(effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    @tool({"name": "seek", "description": "Seek.", "effect": "read", "parameters": NUMBER})
    class Seek:
        async def run(self) -> int:
            return 1

    return [look, Seek, made(double)]


@pytest.mark.parametrize("raw", ['{"n": 1}', {"n": 1}, "{'n': 1}"], ids=["text", "object", "tolerant"])
@pytest.mark.parametrize("style", range(3), ids=["function", "class", "record"])
async def test_the_tool_of_a_result_of_a_gate_answers_with_the_line_to_write(style: int, raw: Any) -> None:
    """The documents' loop, ``for t in results: await t.tool.run()``, ended in ``None has no attribute 'run'``."""
    one = styles()[style]
    gate = gate_of([one])
    async with gate:
        name = gate.registry.list()[0].id
        found = gate.hydrate(ToolCall(id="c", name=name, arguments=raw))
        with pytest.raises(TypeError, match=r"write `await gate\.call\(hydrated, user=user\)`"):
            await found.tool.run()
        assert (await gate.call(found, user=USER)).ok
        failed = gate.hydrate(ToolCall(id="c", name=name, arguments={"n": "x"}))
    assert (failed.success, failed.tool) == (False, None), "there is nothing to run"
