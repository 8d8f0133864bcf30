"""A client's tools behind a gate: one pipeline for every call, and a refused one never reaches the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from callgate import (
    DefinitionError,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Limits,
    Outcome,
    RegistrationError,
    ToolCall,
    ToolDefinition,
    ToolError,
    User,
)
from callgate.errors import SchemaRefused
from callgate.hooks import Authorize, OutputPolicy, Quota, permit
from callgate.runtime.testing import cancel
from callgate.runtime.testing.cancel import SweepFailed, SweepReport
from callgate.runtime.testing.cancel_modes import Native
from callgate.tools.client.client import ClientToolProvider
from callgate.tools.definition import Effect
from callgate.tools.record import Style
from tests.harness.steploop import StepLoop, on_virtual_time
from tests.harness.sweeps import swept
from tests.runtime.pipeline.cancel_cases import Case
from tests.runtime.pipeline.leasing import Place
from tests.runtime.pipeline.leasing import Quota as HeldQuota
from tests.tools.client.test_client_tools import ROWS, SEARCH, Client

ANN, MAX = User("ann", roles={"clerk"}), User("max", roles={"manager"})
GOOD = '{"query": "test", "limit": 10}'
Sweep = Callable[..., SweepReport]


def answer(call: ToolCall) -> dict[str, Any]:
    return {"toolCallId": call.id, "toolName": call.name, "success": True, "result": {"rows": [1]}}


def call(arguments: Any = GOOD, name: str = "search_database", **options: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments, **options)


def gate_of(client: Any, *hooks: Any, sent: Sequence[Any] = (SEARCH,), **options: Any) -> Gate:
    return Gate(
        ClientToolProvider(list(sent), client, **options).tools(),
        hooks,
        allow_unguarded=True,
        effects=Effects(durable=False),
    )


class Watching(Hook):
    """Notes the stages that it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def will_authorize(self, ctx: InvokeContext) -> None:
        self.seen.append("authorize")

    def will_authorize_input(self, ctx: InvokeContext) -> None:
        self.seen.append(ctx.input)

    def will_execute(self, ctx: InvokeContext) -> None:
        self.seen.append("execute")

    def did_audit(self, ctx: InvokeContext) -> None:
        self.seen.append(ctx.outcome and ctx.outcome.value)


# ---------------------------------------------------------------------- records


def test_each_tool_is_a_record_that_nobody_trusts() -> None:
    """Contract 32, 81, invariants B2: hints decide nothing."""
    hinted = SEARCH | {"annotations": {"readOnlyHint": True, "idempotentHint": True}, "outputSchema": ROWS}
    provider = ClientToolProvider([hinted, SEARCH | {"name": "other"}], Client(answer), limits=Limits(max_bytes=99))
    records = provider.tools()
    assert [record.definition for record in records] == provider.get_tools()
    for record in records:
        assert record.trusted is False
        assert record.style is Style.RECORD
        assert record.definition.effect is None
        assert record.limits == Limits(max_bytes=99)
        assert record.hard_deadline


async def test_a_gate_of_client_tools_wants_an_authoriser() -> None:
    """Design 10.6: whatever a client says of its tool, it may change the world."""
    hinted = SEARCH | {"annotations": {"readOnlyHint": True}}
    with pytest.raises(RegistrationError, match="no hook authorises"):
        async with Gate(ClientToolProvider([hinted], Client(answer)).tools(), effects=Effects(durable=False)):
            pass


def test_a_client_cannot_take_a_name_that_is_taken() -> None:
    """Contract 30, C6, invariants B2."""
    records = ClientToolProvider([SEARCH], Client(answer)).tools()
    own = ToolDefinition("search_database", "Ours.", {"type": "object", "properties": {}}, effect=Effect.READ)
    ours = ClientToolProvider([own], Client(answer)).tools()
    with pytest.raises(DefinitionError, match="Duplicate tool names: search_database"):
        Gate([*ours, *records], allow_unguarded=True)


# ---------------------------------------------------------------------- one pipeline


async def test_a_call_passes_every_stage_and_the_client_gets_what_was_authorised() -> None:
    """Contract 39, 44, 97, invariants I2."""
    client, watching = Client(answer), Watching()
    async with gate_of(client, watching) as gate:
        result = await gate.call(call(), user=ANN)
    assert result.outcome is Outcome.SUCCESS
    assert result.output == {"rows": [1]}
    assert watching.seen == ["authorize", {"query": "test", "limit": 10}, "execute", "success"]
    ((asked, ctx),) = client.asked
    assert asked == ToolCall(id="c1", name="search_database", arguments={"query": "test", "limit": 10})
    assert (ctx.user, ctx.tool_call.arguments) == (ANN, GOOD)


INVALID = ["{", "[]", "{}", {"query": 1}, {"query": "a", "limit": 0}, {"query": "a", "limit": 2.5}]


@pytest.mark.parametrize("arguments", INVALID)
@pytest.mark.parametrize("validate", [True, False])
async def test_invalid_arguments_never_reach_the_client(arguments: Any, validate: bool) -> None:
    """Contract 44, C30, invariants I7: behind a gate there is no opting out."""
    client = Client(answer)
    async with gate_of(client, validate_arguments=validate) as gate:
        result = await gate.call(call(arguments))
    assert result.outcome is Outcome.INVALID
    assert client.asked == []


async def test_a_denied_call_never_reaches_the_client() -> None:
    """Contract 44, invariants I6, I7; the control is the same call by somebody who may."""
    client = Client(answer)
    async with gate_of(client, Authorize(permit("managers", roles={"manager"}))) as gate:
        denied = await gate.call(call(), user=ANN)
        assert (denied.outcome, client.asked) == (Outcome.DENIED, [])
        allowed = await gate.call(call(), user=MAX)
        assert (allowed.outcome, len(client.asked)) == (Outcome.SUCCESS, 1)


async def test_quotas_count_client_tools_and_stop_them() -> None:
    """Contract 96, invariants I7."""
    client = Client(answer)
    async with gate_of(client, Quota("2/minute")) as gate:
        outcomes = [(await gate.call(call(), user=ANN)).outcome for _ in range(4)]
    assert outcomes == [Outcome.SUCCESS] * 2 + [Outcome.RETRY_LATER] * 2
    assert len(client.asked) == 2


# ---------------------------------------------------------------------- what comes back


async def test_a_failure_that_the_client_tells_is_an_error_with_its_text() -> None:
    """Contract 36, 40."""
    client = Client(lambda call: answer(call) | {"success": False, "error": "No such table."})
    async with gate_of(client) as gate:
        result = await gate.call(call())
        assert result.outcome is Outcome.ERROR
        assert result.error is not None
        assert (result.error.code, result.error.public) == ("tool_error", "No such table.")
        with pytest.raises(ToolError, match="No such table"):
            await gate.invoke("search_database", GOOD)


async def test_what_the_callback_raises_stays_in_the_log() -> None:
    """Invariants I9: a gate shows no exception's text; a callback that wants it shown raises ToolError."""
    async with gate_of(Client(ValueError("postgres://user:secret@host"))) as gate:
        result = await gate.call(call())
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.code == "tool_failed"
    assert "secret" not in str(result)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda call: None,
        lambda call: {"rows": []},
        lambda call: answer(call) | {"success": "false"},
        lambda call: answer(call) | {"toolCallId": "c2"},
        lambda call: answer(call) | {"toolName": "other"},
        lambda call: answer(call) | {"result": object()},
        lambda call: answer(call) | {"result": float("nan")},
        lambda call: answer(call) | {"result": "\ud800"},
        lambda call: answer(call) | {"result": [[[1]]] * 10**6},
    ],
)
async def test_what_is_no_result_is_an_error_of_the_tool(wrong: Callable[[ToolCall], Any]) -> None:
    """Contract 39, 40, invariants B5, B6."""
    async with gate_of(Client(wrong)) as gate:
        result = await gate.call(call())
    assert result.outcome is Outcome.ERROR
    assert result.error is not None
    assert result.error.code in {"invalid_output", "output_too_large"}
    assert result.output is None


async def test_results_pass_the_gates_own_output_stages() -> None:
    """Contract 97, C30, invariants B5: the schema and size limits hold, and hooks shape what is left."""

    class Masking(Hook):
        def will_redact_output(self, ctx: InvokeContext) -> None:
            ctx.mask_output({"rows": [0 for _ in ctx.output["rows"]]})

    wrong = Client(lambda call: answer(call) | {"result": {"rows": ["canary"]}})
    async with gate_of(wrong, output_schemas={"search_database": ROWS}) as gate:
        refused = await gate.call(call())
    assert refused.outcome is Outcome.ERROR
    assert "canary" not in str(refused)
    async with gate_of(Client(answer), Masking(), output_schemas={"search_database": ROWS}) as gate:
        masked = await gate.call(call())
    assert masked.output == {"rows": [0]}
    assert masked.provenance["output_validated"] is True
    large = Client(lambda call: answer(call) | {"result": "x" * 1_000})
    async with gate_of(large, limits=Limits(max_output_bytes=500)) as gate:
        assert (await gate.call(call())).error.code == "output_too_large"  # type: ignore[union-attr]
    async with gate_of(large, OutputPolicy(500, on_too_large="truncate")) as gate:
        assert "cut" in (await gate.call(call())).output


async def test_a_schema_that_no_engine_would_bound_is_refused_by_gate_and_provider_alike() -> None:
    """Contract 19, invariants B2, I14."""
    record = ClientToolProvider([SEARCH], Client(answer)).tools()[0]
    evil = {"type": "object", "properties": {"a": {"pattern": "(?=(a+)+$)"}}}
    with pytest.raises(DefinitionError, match="schema refused"):
        ClientToolProvider([SEARCH | {"parameters": evil}], Client(answer))
    forged = replace(record, definition=replace(record.definition, parameters=evil))
    with pytest.raises(SchemaRefused):
        Gate([forged], allow_unguarded=True)


# ---------------------------------------------------------------------- time


@on_virtual_time
async def test_a_client_that_does_not_answer_is_given_up_at_the_deadline(loop: StepLoop) -> None:
    """Contract 43, invariants I12."""

    async def never(call: ToolCall, ctx: Any) -> Any:
        await asyncio.Event().wait()

    records = ClientToolProvider([SEARCH], never).tools()
    async with Gate(records, allow_unguarded=True, effects=Effects(durable=False), deadline=30) as gate:
        began = loop.time()
        result = await gate.call(call())
    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    assert loop.time() - began < 31


class Asking(Case):
    """A call of a client's tool under two leases; the client holds a third while it is asked."""

    takes = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.use(HeldQuota(self.held("quota")), Place(self.held("place")))
        self.runs(*ClientToolProvider([SEARCH], self.ask).tools())

    @contextmanager
    def asked(self) -> Generator[None]:
        lease = ("client", object())
        self.ledger.acquired(lease)
        try:
            yield
        finally:
            self.ledger.released(lease)

    async def open(self) -> Gate:
        if self.gate is None:
            self.gate = Gate(self.tools, self.hooks, allow_unguarded=True, effects=Effects(durable=False))
            await self.gate.__aenter__()
        return self.gate

    async def ask(self, call: ToolCall, ctx: Any) -> Any:
        with self.asked():
            await asyncio.sleep(0)
            await asyncio.sleep(self.takes)
        return answer(call)

    async def call(self, gate: Gate) -> Any:
        result = await gate.call(call(), user=ANN)
        return result.outcome, result.output


class Forgetting(Asking):
    """Asks the client in a task that it forgets."""

    takes = 60.0

    async def ask(self, call: ToolCall, ctx: Any) -> Any:
        return await asyncio.shield(super().ask(call, ctx))


@swept
def test_nothing_leaks_wherever_a_call_of_a_client_tool_is_cancelled(
    every_cancel_point: Sweep, sweep: dict[str, Any]
) -> None:
    """I1, I12; contract C1d."""
    report = every_cancel_point(Asking(), **sweep)
    assert report.findings == []
    assert report.leases >= 3


def test_control_a_client_that_is_asked_in_a_forgotten_task_is_found() -> None:
    """I1: the sweep finds what it is there to find."""
    with pytest.raises(SweepFailed):
        cancel.every_cancel_point(Forgetting(), (Native,), paired=(), stop_after=40)
