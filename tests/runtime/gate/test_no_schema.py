"""Calls of tools without a schema: the marks that every record has, and the policy that decides their mode."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callgate import Approval, Approve, Denied, NoSchemaMode, Outcome, ToolDefinition, User, tool
from callgate.hooks import Audit, Tracing
from callgate.providers.logs import configure_logging
from callgate.testing import trace
from tests.hooks.stock.records.auditing import rows_of
from tests.runtime.gate.making import USER, Seeing, call, double, gate_of, made

BOSS = User("boss", tenant="acme", roles={"boss"})


def loose(mode: str = "full", effect: Any = "read") -> Any:
    async def takes_anything(**arguments: Any) -> Any:
        """Takes anything."""
        return arguments

    declared: Any = tool
    return declared(name="loose", effect=effect, allow_no_schema=True, no_schema_mode=mode)(takes_anything)


LOOSE = call({"n": 2}, "loose")


async def test_the_audit_row_of_a_call_without_a_schema_says_that_nothing_was_validated() -> None:
    """Contract 16, C9."""
    async with gate_of([loose(effect="idempotent"), made(double)], Audit(), durable=False) as gate:
        await gate.call(LOOSE, user=USER)
        await gate.call(call(), user=USER)
        rows = [row.body for row in await rows_of(gate.store.audit)]
    marks = [(row["tool"], row["kind"], row["validated"], row.get("no_schema_mode")) for row in rows]
    assert marks == [
        ("loose", "intent", False, "full"),
        ("loose", "outcome", False, "full"),
        ("work", "outcome", True, None),
    ]


async def test_the_span_of_a_call_without_a_schema_says_that_nothing_was_validated() -> None:
    """Contract 16."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with gate_of([loose(), made(double)], Tracing(provider)) as gate:
        await gate.call(LOOSE, user=USER)
        await gate.call(call(), user=USER)
    marked, plain = [dict(span.attributes or {}) for span in kept.get_finished_spans()]
    assert (marked["callgate.validated"], marked["callgate.no_schema_mode"]) == (False, "full")
    assert not {"callgate.validated", "callgate.no_schema_mode"} & plain.keys()


@pytest.mark.parametrize("normalises", [False, True])
async def test_the_trace_never_says_that_nothing_was_validated_successfully(normalises: bool) -> None:
    """Contract 16."""

    class Normalising(Seeing):
        def will_normalize_input(self, ctx: Any) -> None: ...

    hooks = [Normalising()] if normalises else []
    async with gate_of([loose(), made(double)], *hooks) as gate:
        seen = await trace(gate, LOOSE, user=USER)
        plain = await trace(gate, call(), user=USER)
    assert not any("validate]" in name for name in seen.verdicts)
    assert "[no schema].will_validate_input" in seen.verdicts
    assert "[validate].will_validate_input" in plain.verdicts, "the control: the probe sees a validation"
    assert "validated=false, no_schema_mode=full" in str(seen)
    assert "validated=false" not in str(plain)


async def test_explain_and_lint_name_the_mode() -> None:
    """Contract 16."""
    async with gate_of([loose(), made(double)]) as gate:
        assert "validated=false, no_schema_mode=full" in str(gate.explain("loose"))
        assert "validated=false" not in str(gate.explain("work"))
        assert "admit" not in str(gate.explain("loose"))
        assert [(one.rule, one.tool) for one in gate.lint()] == [("no_schema", "loose")]
        assert "no_schema_mode=full" in str(gate.lint()[0])


async def test_every_log_event_of_a_call_without_a_schema_names_the_mode() -> None:
    """Contract 16."""

    class Refusing(Seeing):
        def will_authorize_input(self, ctx: Any) -> None:
            if ctx.user.id == "refused":
                raise Denied("no")

    events: list[dict[str, Any]] = []
    configure_logging(events.append)
    try:
        async with gate_of([loose(), made(double)], Refusing()) as gate:
            events.clear()
            for user in (USER, User("refused")):
                await gate.call(LOOSE, user=user)
                await gate.call(call(), user=user)
            found = [(one["event"], one.get("validated"), one.get("no_schema_mode")) for one in events]
    finally:
        configure_logging()
    assert found == [
        ("call.not_validated", False, "full"),
        ("call.not_validated", False, "full"),
        ("call.refused", False, "full"),
        ("call.refused", None, None),
    ]


# ---------------------------------------------------------------------- the policy


def policy(definition: ToolDefinition, user: User) -> Any:
    """Read-only for clerks, approval for the boss, nothing for others."""
    assert definition.name == "loose"
    return {"u": "read-only", "boss": Approval(roles={"auditor"}), "trusted": NoSchemaMode.FULL}.get(user.id)


async def later(definition: ToolDefinition, user: User) -> Any:
    """The same policy, from somewhere else."""
    return policy(definition, user)


@pytest.mark.parametrize("decides", [policy, later])
async def test_a_policy_decides_by_tool_and_user_which_mode_holds(decides: Any) -> None:
    """Contract 15, 16, 17, C9."""
    async with gate_of([loose("full"), made(double)], no_schema_policy=decides) as gate:
        reads = await gate.call(LOOSE, user=USER)
        waits = await gate.call(LOOSE, user=BOSS)
        full = await gate.call(LOOSE, user=User("trusted"))
        denied = await gate.call(LOOSE, user=User("stranger"))
        assert (await gate.call(call(), user=User("stranger"))).ok, "tools with a schema are not its business"
        assert [one.outcome for one in (reads, waits, full, denied)] == [
            Outcome.SUCCESS,
            Outcome.SUSPENDED,
            Outcome.SUCCESS,
            Outcome.DENIED,
        ]
        assert [one.provenance["no_schema_mode"] for one in (reads, waits, full, denied)] == [
            "read-only",
            "human-approval",
            "full",
            None,
        ]
        auditor = User("auditor", tenant="acme", roles={"auditor"})
        ran = await gate.resume(waits.pending.handle, Approve(), approver=auditor)
        assert (ran.output, ran.provenance["no_schema_mode"]) == ({"n": 2}, "human-approval")


@pytest.mark.parametrize(
    "answer", ["read-only", "nonsense", False, RuntimeError("down")], ids=["too little", "unknown", "no", "failure"]
)
async def test_a_policy_that_fails_or_answers_nonsense_or_too_little_denies(answer: Any) -> None:
    """Contract 17, C9, I6."""

    def decides(_definition: ToolDefinition, _user: User) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with gate_of([loose(effect="idempotent")], no_schema_policy=decides, durable=False) as gate:
        assert (await gate.call(LOOSE, user=USER)).outcome is Outcome.DENIED


async def test_a_policy_may_require_approval_of_every_call_without_a_schema() -> None:
    """Contract 17."""
    async with gate_of([loose("full")], no_schema_policy=lambda _tool, _user: "human-approval") as gate:
        waits = await gate.call(LOOSE, user=USER)
        assert waits.outcome is Outcome.SUSPENDED
        assert (await gate.resume(waits.pending.handle, Approve(), approver=BOSS)).output == {"n": 2}
