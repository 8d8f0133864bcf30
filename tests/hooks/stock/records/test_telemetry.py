"""``Metrics`` and ``Tracing``: spans by the GenAI conventions, none lost or left open, and nothing without a provider."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from callgate import Effects, Gate, Hook, InvokeContext, ToolCall, ToolContext, User, tool
from callgate.errors import HookError
from callgate.hooks.stock.records.audit import Audit
from callgate.hooks.stock.records.audit_verify import verify_audit
from callgate.hooks.stock.records.telemetry import Metrics, Tracing
from callgate.hooks.stock.resilience.retry import Retry
from callgate.runtime.testing.cancel import SweepReport
from callgate.runtime.testing.cancel_modes import Native
from callgate.runtime.testing.lease_ledger import LeaseLedger
from tests.harness.steploop import cost_of
from tests.harness.sweeps import swept
from tests.hooks.stock.records.auditing import USER, WaitingAudit, a_gate, rows_of, store_with
from tests.world import asked

sdk_trace = pytest.importorskip("opentelemetry.sdk.trace", reason="NO OPENTELEMETRY SDK: telemetry is not tested")
sdk_metrics = pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402


class Spans:
    """A provider, and what it saw."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = sdk_trace.TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.begun = 0
        self.provider.add_span_processor(self)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.begun += 1

    def on_end(self, span: Any) -> None: ...

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True

    @property
    def ended(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


class Meter:
    """A meter provider, and what it counted."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = sdk_metrics.MeterProvider([self.reader], shutdown_on_exit=False)

    def points(self, name: str) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            key = " ".join(str(value) for _, value in sorted((point.attributes or {}).items()))
                            found[key] = getattr(point, "value", None) or point
        return found


# ---------------------------------------------------------------------- metrics


async def test_calls_are_counted_by_tool_outcome_and_code_and_measured() -> None:
    """Issue: deny and error counters by code, a histogram of durations."""
    meter = Meter()
    async with a_gate(Metrics(meter.provider)) as gate:
        for n in (1, 2, 101):
            await gate.call(asked("look", n=n), user=USER)
        await gate.call(asked("look", n=1), user=User("nobody"))
        await gate.call(asked("crash", n=1), user=USER)
        await gate.call(asked("fail", n=1), user=USER)
    assert meter.points("callgate.calls") == {
        "success look": 2,
        "retry_later retry_later look": 1,
        "who denied look": 1,
        "RuntimeError error crash": 1,
        "tool_error error fail": 1,
    }
    assert meter.points("callgate.denials") == {"retry_later look": 1, "who look": 1}
    assert meter.points("callgate.errors") == {"RuntimeError crash": 1, "tool_error fail": 1}
    durations = meter.points("gen_ai.execute_tool.duration")
    assert durations["execute_tool look"].count == 2
    assert durations["RuntimeError execute_tool crash"].count == 1


async def test_no_user_tenant_or_id_is_on_a_metric() -> None:
    """Cardinality, and T6: readers of metrics."""
    meter = Meter()
    async with a_gate(Metrics(meter.provider)) as gate:
        await gate.call(asked("look", n=1), user=User("canary-user", tenant="canary-tenant"), session_id="canary-s")
    assert "canary" not in str(meter.reader.get_metrics_data())


# ---------------------------------------------------------------------- spans


async def test_a_call_is_one_span_by_the_conventions() -> None:
    """Issue: ``execute_tool`` span by the GenAI conventions."""
    spans = Spans()
    async with a_gate(Tracing(spans.provider)) as gate:
        await gate.call(asked("look", n=1), user=USER, session_id="s1", request_id="r1")
    (span,) = spans.ended
    assert span.name == "execute_tool look"
    assert span.kind is trace.SpanKind.INTERNAL
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look at a number.",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": "s1",
        "callgate.tool.version": "1",
        "callgate.effect": "read",
        "callgate.request_id": "r1",
        "callgate.tenant": "acme",
        "callgate.outcome": "success",
        "callgate.executed": True,
    }
    assert span.status.status_code is trace.StatusCode.UNSET


@pytest.mark.parametrize(
    ("name", "n", "user", "kind"),
    [
        ("look", 1, "nobody", "who"),
        ("look", "x", "u", "invalid_arguments"),
        ("look", 104, "u", "ValueError"),
        ("crash", 1, "u", "RuntimeError"),
        ("nothing_like_it", 1, "u", "unknown_tool"),
    ],
)
async def test_a_call_that_fails_has_the_type_of_its_error_and_no_text(name: str, n: Any, user: str, kind: str) -> None:
    """I9."""
    spans = Spans()
    async with a_gate(Tracing(spans.provider)) as gate:
        await gate.call(asked(name, n=n), user=User(user))
    (span,) = spans.ended
    assert span.attributes["error.type"] == kind
    assert span.status.status_code is trace.StatusCode.ERROR
    shown = span.to_json()
    assert "canary" not in shown
    assert "hunter22" not in shown


async def test_an_unexpected_exception_is_an_event_of_the_span_also_where_the_call_goes_on() -> None:
    class Breaks(Hook):
        on_failure = "ignore"

        def did_execute(self, ctx: InvokeContext) -> None:
            raise LookupError("canary")

    spans = Spans()
    async with a_gate(Breaks(), Tracing(spans.provider)) as gate:
        await gate.call(asked("look", n=1))
        await gate.call(asked("crash", n=1))
        await gate.call(asked("look", n="x"))
    ignored, crashed, refused = spans.ended
    (event,) = ignored.events
    assert event.attributes["exception.type"] == "LookupError"
    assert event.attributes["callgate.step"] == "Breaks.did_execute"
    assert "in did_execute" in event.attributes["exception.stacktrace"]
    assert [one.attributes["exception.type"] for one in crashed.events] == ["RuntimeError"]
    assert refused.events == ()
    assert "canary" not in "".join(span.to_json() for span in spans.ended)


async def test_what_a_caller_and_nested_calls_do_hangs_together() -> None:
    """Issue: parent from the caller's context; nested calls are children."""
    spans = Spans()
    tracer = spans.provider.get_tracer("tests")

    @tool(effect="read")
    async def outer(ctx: ToolContext) -> int:
        """Call another."""
        with tracer.start_as_current_span("query"):
            return int(await ctx.call("inner"))

    @tool(effect="read")
    async def inner() -> int:
        """Be called."""
        return 1

    async with Gate([outer, inner], [Tracing(spans.provider)], effects=Effects(durable=False)) as gate:
        with tracer.start_as_current_span("request") as request:
            await gate.call(ToolCall(id="c", name="outer", arguments={}))
            assert trace.get_current_span() is request
    found = {span.name: span for span in spans.ended}
    assert found["execute_tool outer"].parent.span_id == found["request"].context.span_id
    assert found["query"].parent.span_id == found["execute_tool outer"].context.span_id
    assert found["execute_tool inner"].parent.span_id == found["query"].context.span_id
    assert len({span.context.trace_id for span in spans.ended}) == 1


async def test_calls_at_once_do_not_become_each_others_children() -> None:
    spans = Spans()
    async with a_gate(Tracing(spans.provider)) as gate:
        await gate.call_many([asked("look", n=n) for n in range(20)], user=USER)
    assert [span.parent for span in spans.ended] == [None] * 20


async def test_masked_arguments_are_on_the_span_only_when_asked_for() -> None:
    """Issue; I9: masked as in the audit record."""
    for arguments in (False, True):
        spans = Spans()
        async with a_gate(Tracing(spans.provider, arguments=arguments)) as gate:
            await gate.call(asked("pay", cents=1, password="canary-password"), user=USER)
            await gate.call(asked("pay", cents="x", password="canary-password"), user=USER)
        shown = [span.attributes.get("gen_ai.tool.call.arguments") for span in spans.ended]
        assert shown == ['{"cents":1,"password":"***","note":""}' if arguments else None, None]
        assert "canary" not in "".join(span.to_json() for span in spans.ended)


class Again(Hook):
    repeats = True

    async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
        try:
            return await next()
        except Exception:  # noqa: BLE001
            return await next()


async def test_attempts_are_events_of_one_span() -> None:
    spans = Spans()
    async with a_gate(Again(), Tracing(spans.provider)) as gate:
        await gate.call(asked("fail", n=1), user=USER)
    (span,) = spans.ended
    assert [(event.name, dict(event.attributes)) for event in span.events] == [
        ("callgate.retry", {"callgate.attempt": 2})
    ]


async def test_stages_are_events_with_durations_when_asked_for() -> None:
    """Issue: stage durations. They change nothing of the plan's outcome, nor what the linter says."""
    spans = Spans()
    async with a_gate(Tracing(spans.provider, stages=True)) as gate:
        result = await gate.call(asked("look", n=1), user=USER)
        assert [found.rule for found in gate.lint()] == ["irreversible_without_key"], "of the tool, not of the hook"
    assert result.ok
    (span,) = spans.ended
    told = [event.attributes["callgate.stage"] for event in span.events]
    assert told[0] == "will_create_invoke_context"
    assert {"will_authorize", "will_validate_input", "will_execute", "will_audit"} <= set(told)
    assert len(told) == len(set(told))
    whole = (span.end_time - span.start_time) / 1e9
    assert 0 < sum(event.attributes["callgate.stage.duration"] for event in span.events) <= whole * 1.5 + 0.01


async def test_a_call_that_another_hook_ended_first_has_a_span_all_the_same() -> None:
    class First(Hook):
        priority = 1_000_000

        def will_create_invoke_context(self, ctx: InvokeContext) -> None:
            ctx.abort("closed")

    spans = Spans()
    async with a_gate(First(), Tracing(spans.provider)) as gate:
        await gate.call(asked("look", n=1), user=USER)
    assert [span.attributes["error.type"] for span in spans.ended] == ["denied"]


# ---------------------------------------------------------------------- every cancel point

Sweep = Callable[..., SweepReport]


@tool(effect="irreversible")
async def transfer(ctx: ToolContext) -> int:
    """Wait, and call another."""
    await asyncio.sleep(0.001)
    return int(await ctx.call("look", {"n": 1}))


def _case(spans: Spans, audits: list[WaitingAudit], *, sabotaged: bool = False) -> Any:
    class Forgetful(Tracing):
        async def will_execute(self, ctx: InvokeContext) -> None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                ctx.data.pop(self._key)
                raise

    async def scenario(ledger: LeaseLedger) -> None:
        audit = WaitingAudit(0.001)
        audits.append(audit)
        before = trace.get_current_span()
        tracing = Forgetful(spans.provider) if sabotaged else Tracing(spans.provider)
        try:
            gate = a_gate(tracing, Audit(anchor_every=2), store=store_with(audit), session_ttl=None)
            gate.add(transfer)
            async with gate:
                await gate.invoke("transfer", {}, user=USER)
        finally:
            assert trace.get_current_span() is before

    return scenario


@swept
def test_no_span_is_lost_or_left_open_and_no_row_is_missing_at_any_cancel_point(
    every_cancel_point: Sweep, sweep: dict[str, Any]
) -> None:
    """I1, I1b, I3, I17: Audit on a store that waits, and Tracing."""
    spans, audits = Spans(), list[WaitingAudit]()
    report = every_cancel_point(_case(spans, audits), **sweep)
    assert report.findings == []
    assert report.points > 150
    assert spans.begun == len(spans.ended) > 0

    async def look() -> None:
        calls = 0
        for audit in audits:
            found = await verify_audit(audit)
            assert found.ok, str(found)
            rows = await rows_of(audit)
            ended = [row.body["tool"] for row in rows if row.body["kind"] == "outcome"]
            intents = [row.body["tool"] for row in rows if row.body["kind"] == "intent"]
            assert ended.count("transfer") <= 1
            assert intents.count("transfer") <= ended.count("transfer")
            calls += len(ended)
        assert calls == len(spans.ended)  # each call that had a span has its row

    asyncio.run(look())


def test_control_a_hook_that_forgets_its_span_when_cancelled_is_seen(every_cancel_point: Sweep) -> None:
    """The sabotaged control of the test above."""
    spans = Spans()
    try:
        every_cancel_point(_case(spans, [], sabotaged=True), (Native,), pairs=0)
    except Exception:  # noqa: BLE001  (the current span is not put back, either)
        return
    assert spans.begun > len({span.context.span_id for span in spans.ended})


# ---------------------------------------------------------------------- without a provider

NOTHING = """
import asyncio, sys
sys.modules["fastapi"] = None  # dependency-injector looks for it, and where it is installed it brings OpenTelemetry
from callgate import Gate, tool
from callgate.hooks.stock.records.telemetry import Metrics, Tracing
from callgate.hooks.stock.resilience.retry import Retry

@tool(effect="read")
async def look(n: int) -> int:
    "Look."
    return n

async def main() -> None:
    async with Gate([look], [Metrics(), Tracing(), Tracing(stages=True, arguments=True)]) as gate:
        assert await gate.invoke("look", {"n": 1}) == 1

asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_without_a_provider_opentelemetry_is_not_even_imported() -> None:
    """Issue: nothing at all when no provider is set."""
    said = subprocess.run([sys.executable, "-c", NOTHING], check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == []


def test_without_a_provider_no_task_is_made_and_nothing_waits() -> None:
    async def with_hooks() -> None:
        async with a_gate(Metrics(), Tracing(), session_ttl=None) as gate:
            await gate.call(asked("look", n=1), user=USER)

    async def without() -> None:
        async with a_gate(session_ttl=None) as gate:
            await gate.call(asked("look", n=1), user=USER)

    assert cost_of(with_hooks) == cost_of(without)


@pytest.mark.parametrize("hook", [Metrics, Tracing])
def test_what_is_no_provider_is_refused(hook: Any) -> None:
    with pytest.raises(HookError, match="give a provider of OpenTelemetry"):
        hook(object())


# ---------------------------------------------------------------------- the global provider


class Global:
    """The global providers of a test; before ``set`` they are the proxies of an application without any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans, self.meter, self._patch = Spans(), Meter(), monkeypatch

    def set(self) -> None:
        self._patch.setattr("opentelemetry.trace.get_tracer_provider", lambda: self.spans.provider)
        self._patch.setattr("opentelemetry.metrics.get_meter_provider", lambda: self.meter.provider)

    def seen(self) -> tuple[list[str], dict[str, Any]]:
        return [span.name for span in self.spans.ended], self.meter.points("callgate.calls")


MOMENTS = ("before the hooks are made", "before the gate is made", "before the gate opens", "never")


@pytest.mark.parametrize("place", ["gate", "use", "tool"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_hooks_without_a_provider_use_the_global_one_or_say_that_they_run_nowhere(
    moment: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost in silence, whenever the application sets its providers before the gate opens."""
    world = Global(monkeypatch)

    def reached(now: str) -> None:
        if moment == now:
            world.set()

    reached(MOMENTS[0])
    hooks = [Tracing(), Metrics()]
    reached(MOMENTS[1])

    @tool(effect="read", hooks=hooks if place == "tool" else [])
    async def look() -> None:
        """Look."""

    gate = Gate([look], hooks if place == "gate" else [])
    undo = [gate.use(hook) for hook in hooks] if place == "use" else []
    reached(MOMENTS[2])
    async with gate:
        await gate.call("look")
        found = [one for one in gate.lint() if one.rule == "runs_nowhere"]
        explained = str(gate.explain("look"))
        for one in undo:
            one()
        await gate.call("look")
    spans, calls = world.seen()
    assert {one.hook for one in found} == ({"Tracing", "Metrics"} if moment == "never" else set())
    assert explained.count("runs nowhere: there is no ") == len(found)
    expected = 0 if moment == "never" else 1 if place == "use" else 2
    assert spans == ["execute_tool look"] * expected
    assert calls == ({"success look": expected} if expected else {})


def test_the_proxies_of_opentelemetry_are_known_by_their_names() -> None:
    """A canary: where a proxy is called otherwise, a hook without a provider would trace into it in silence."""
    script = (
        "from opentelemetry import metrics, trace\n"
        "found = trace.get_tracer_provider(), metrics.get_meter_provider()\n"
        "assert all('Proxy' in type(one).__name__ for one in found), found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("hook", [Metrics, Tracing])
def test_a_telemetry_class_in_place_of_its_object_is_refused(hook: Any) -> None:
    with pytest.raises(HookError, match=rf"write {hook.__name__}\(\)"):
        Gate([], [hook])


class BrokenSpan(trace.NonRecordingSpan):
    """A span whose events raise."""

    def add_event(self, *_: object, **__: object) -> None:
        raise OSError("no exporter")


class BrokenTracer(trace.NoOpTracer):
    """A tracer of such spans."""

    def start_span(self, *_: object, **__: object) -> trace.Span:
        return BrokenSpan(trace.INVALID_SPAN_CONTEXT)


class BrokenTraces(trace.NoOpTracerProvider):
    """A provider of such tracers."""

    def get_tracer(self, *_: object, **__: object) -> trace.Tracer:
        return BrokenTracer()


@pytest.mark.parametrize("stages", [False, True])
async def test_a_tracer_whose_events_fail_changes_no_call(stages: bool) -> None:
    """It took the retry away, and with ``stages=True`` failed calls whose tool had run."""
    ran: list[int] = []

    @tool(effect="read")
    async def flaky(n: int) -> int:
        """Fail once."""
        ran.append(n)
        if len(ran) == 1:
            raise ConnectionError
        return n

    async with Gate([flaky], [Tracing(BrokenTraces(), stages=stages), Retry(2, wait=lambda _: 0.0)]) as gate:
        assert (await gate.call("flaky", {"n": 3})).output == 3
    assert ran == [3, 3]
