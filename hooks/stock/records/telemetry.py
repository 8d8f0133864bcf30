"""``Metrics`` and ``Tracing``: OpenTelemetry metrics and spans, with the global provider unless they are given one.

Without either they run at no stage, and OpenTelemetry is not imported.

Names follow the semantic conventions for generative AI (``execute_tool``), which are still in development. Names outside
of the conventions begin with ``callgate.``. The package of the conventions is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Unpack

import orjson

from callgate.errors import HookError, InvocationError
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.options import HookOptions, checked, set_options
from callgate.hooks.stock.records.masking import ShownInput
from callgate.hooks.stock.records.otel_provider import ProviderHook, made_by
from callgate.providers.faults import fault_of, places_of
from callgate.providers.registry import MISSING
from callgate.providers.stores.base import StoreFigures
from callgate.tools.calls import Outcome

OPERATION = "gen_ai.operation.name"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
DESCRIPTION = "gen_ai.tool.description"
CALL_ID = "gen_ai.tool.call.id"
ARGUMENTS = "gen_ai.tool.call.arguments"
CONVERSATION = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"

_REFUSED = frozenset({Outcome.INVALID, Outcome.DENIED, Outcome.RETRY_LATER, Outcome.CONFLICT, Outcome.IN_FLIGHT})
_FAILED = frozenset({Outcome.ERROR, Outcome.UNKNOWN})


_GAUGES = frozenset({"unknown_effects", "suspended_calls", "oldest_job"})
_OF_STORE = {
    "unknown_effects": ("{effect}", "effects without a known outcome"),
    "suspended_calls": ("{call}", "calls that wait for a decision or an answer"),
    "oldest_job": ("s", "time for which the longest waiting job could have run"),
    "changes": ("{change}", "claims, outcomes and audit rows that were written"),
    "transactions": ("{transaction}", "transactions that wrote them"),
    "connection_waits": ("{request}", "requests that had to wait for a connection"),
    "connection_wait_time": ("s", "time that they have waited"),
}
"""The figures of a store: unit and description."""


def error_type(ctx: InvokeContext) -> str | None:
    """Return the error of a call as a value of low cardinality: its error code, or the type of the exception."""
    error = ctx.run.error
    if error is None:
        return None
    if ctx.run.outcome is Outcome.CANCELLED:
        return "cancelled"
    return error.code if isinstance(error, InvocationError) else type(error).__name__


class Metrics(ProviderHook):
    """OpenTelemetry metrics: counters of calls and a histogram of their duration.

    ``gen_ai.execute_tool.duration`` is a histogram in seconds, by tool and, for failed calls, ``error.type``.
    ``callgate.calls`` counts all calls by tool, outcome and code. ``callgate.denials`` counts refused calls and
    ``callgate.errors`` failed calls, by tool and code. No metric has a user, tenant or id as an attribute.

    The gate's store is measured twice a minute: ``callgate.store.unknown_effects``, ``callgate.store.suspended_calls`` and
    ``callgate.store.oldest_job`` (seconds) are gauges; ``callgate.store.changes``, ``callgate.store.transactions``,
    ``callgate.store.connection_waits`` and ``callgate.store.connection_wait_time`` (seconds) are counters. See
    ``callgate.stores.StoreFigures`` for their meaning.

    Args:
        meter_provider: an OpenTelemetry ``MeterProvider``; default: the global one when the gate opens. Without any it
            measures nothing, and does not import OpenTelemetry.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``filter``, ...

    Raises:
        HookError: the provider is not a ``MeterProvider``.
    """

    concern = "metrics"
    note_figures: Callable[[StoreFigures], None] | None = None  # without a provider the store is not asked for them

    _api, _kind = "metrics", "meter"

    @checked
    def __init__(self, meter_provider: object = None, **options: Unpack[HookOptions]) -> None:
        self._figures: StoreFigures | None = None
        self._start(Metrics, meter_provider)
        set_options(self, options)

    def _use(self, provider: object) -> None:
        meter = made_by(provider, "get_meter", "Metrics")
        self._calls = meter.create_counter("callgate.calls", unit="{call}", description="calls that ended")
        self._denials = meter.create_counter("callgate.denials", unit="{call}", description="calls that were refused")
        self._errors = meter.create_counter("callgate.errors", unit="{call}", description="calls that broke")
        self._duration = meter.create_histogram(
            "gen_ai.execute_tool.duration", unit="s", description="time from the start of a call to its records"
        )
        for name, (unit, description) in _OF_STORE.items():
            kind = "gauge" if name in _GAUGES else "counter"
            create = getattr(meter, f"create_observable_{kind}")
            create(f"callgate.store.{name}", [self._observing(name)], unit=unit, description=description)
        self.note_figures = self._note

    def _note(self, figures: StoreFigures) -> None:
        self._figures = figures

    def _observing(self, name: str) -> object:
        def observe(_options: object) -> Iterable[object]:
            from opentelemetry.metrics import Observation

            return () if self._figures is None else (Observation(getattr(self._figures, name)),)

        return observe

    def on_metrics(self, ctx: InvokeContext) -> None:
        """Record one call."""
        tool, outcome, kind = ctx.run.plan.definition.name, ctx.run.outcome or Outcome.ERROR, error_type(ctx)
        measured = {OPERATION: "execute_tool", TOOL: tool}
        counted: dict[str, str | bool] = {TOOL: tool, "callgate.outcome": outcome.value}
        if ctx.run.plan.definition.deprecated is not None:
            counted["callgate.deprecated"] = True
        if kind is not None:
            measured[ERROR_TYPE] = kind
            counted["callgate.code"] = kind
            if outcome in _REFUSED:
                self._denials.add(1, {TOOL: tool, "callgate.code": kind})
            elif outcome in _FAILED:
                self._errors.add(1, {TOOL: tool, "callgate.code": kind})
        self._calls.add(1, counted)
        self._duration.record(ctx.duration or 0.0, measured)


class _Span:
    """The state of a call's span."""

    __slots__ = ("mark", "span", "stage", "token")

    def __init__(self, span: Any, token: Any) -> None:
        self.span = span
        self.token = token
        self.stage: Stage | None = None
        self.mark = 0.0


class Tracing(ProviderHook):
    """OpenTelemetry tracing: one span ``execute_tool NAME`` per call, from its first stage to its last.

    The parent is the current span of the caller. Spans of the tool, of hooks and of nested calls are its children. The
    span of a refused, failed or cancelled call has ``error.type`` and status ERROR, without a description. Retries are
    events, and so are unexpected exceptions, with the files and lines of their traceback; their text
    is in the log.

    Args:
        tracer_provider: an OpenTelemetry ``TracerProvider``; default: the global one when the gate opens. Without any
            it traces nothing, and does not import OpenTelemetry.
        arguments: True puts the masked arguments on the span, as ``gen_ai.tool.call.arguments``.
        stages: True adds an event ``callgate.stage`` for each stage, with its duration in seconds.
        secret_keys: names of further members to mask when no hook masks the arguments.
        options: the options of every hook: ``tools``, ``tags``, ``tenants``, ``filter``, ...

    Raises:
        HookError: the provider is not a ``TracerProvider``, or OpenTelemetry is not installed.
    """

    concern = "tracing"
    priority = 10_000  # the span starts before all other hooks and covers them
    whole = True
    _api, _kind = "trace", "tracer"

    @checked
    def __init__(
        self,
        tracer_provider: object = None,
        *,
        arguments: bool = False,
        stages: bool = False,
        secret_keys: Collection[str] = (),
        **options: Unpack[HookOptions],
    ) -> None:
        self._key = object()
        self._shown = ShownInput(secret_keys) if arguments else None
        self._marks = stages
        self._start(Tracing, tracer_provider, () if stages else _MARKED)
        set_options(self, options)

    def _use(self, provider: object) -> None:
        self._tracer = made_by(provider, "get_tracer", "Tracing")
        try:
            from opentelemetry import context, trace
        except ImportError:
            raise HookError('Tracing needs OpenTelemetry; run pip install "callgate[otel]"') from None
        self._attach, self._detach = context.attach, context.detach
        self._with_span, self._internal = trace.set_span_in_context, trace.SpanKind.INTERNAL
        self._error = trace.Status(trace.StatusCode.ERROR)

    def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Start the span and make it the current one."""
        self._begin(ctx)
        if self._marks:
            self._passes(ctx, Stage.WILL_CREATE_INVOKE_CONTEXT)

    def on_retry(self, ctx: InvokeContext) -> None:
        """Add an event for an attempt after the first."""
        kept = ctx.data.get(self._key)
        if kept is not None:
            _add_event(ctx, kept.span, "callgate.retry", {"callgate.attempt": ctx.run.attempt})

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        """End the span and restore the previous current span."""
        if self._marks:
            self._passes(ctx, None)
        kept = ctx.data.pop(self._key, MISSING)
        if kept is MISSING:  # another hook ended the call before the span started
            kept = self._begin(ctx, current=False)
        try:
            self._finish(ctx, kept.span)
        finally:
            kept.span.end()
            if kept.token is not None:
                self._detach(kept.token)

    def _passes(self, ctx: InvokeContext, stage: Stage | None) -> None:
        """Add the event of the previous stage. Only stages of ``_MARKED``: a method there does not change the plan."""
        kept = ctx.data.get(self._key)
        if kept is None:
            return
        now = ctx.run.plan.host.monotonic()
        if kept.stage is not None:
            named = {"callgate.stage": kept.stage.value, "callgate.stage.duration": now - kept.mark}
            _add_event(ctx, kept.span, "callgate.stage", named)
        kept.stage, kept.mark = stage, now

    def _begin(self, ctx: InvokeContext, *, current: bool = True) -> _Span:
        definition, call = ctx.run.plan.definition, ctx.run.tool_call
        attributes = {
            OPERATION: "execute_tool",
            TOOL: definition.name,
            TOOL_TYPE: "function",
            DESCRIPTION: definition.description,
            "callgate.tool.version": definition.version,
            "callgate.effect": "undeclared" if definition.effect is None else definition.effect.value,
            "callgate.request_id": ctx.request_id,
        }
        if call is not None:
            attributes[CALL_ID] = call.id
        if ctx.run.session_id is not None:
            attributes[CONVERSATION] = ctx.run.session_id
        if ctx.user.tenant is not None:
            attributes["callgate.tenant"] = ctx.user.tenant
        span = self._tracer.start_span(f"execute_tool {definition.name}", kind=self._internal, attributes=attributes)
        kept = _Span(span, None)
        if current:
            kept.token = self._attach(self._with_span(span))
            ctx.data[self._key] = kept
        return kept

    def _finish(self, ctx: InvokeContext, span: Any) -> None:
        if not span.is_recording():
            return
        span.set_attribute("callgate.outcome", (ctx.run.outcome or Outcome.ERROR).value)
        span.set_attribute("callgate.executed", ctx.run.executed)
        if ctx.run.attempt > 1:
            span.set_attribute("callgate.attempt", ctx.run.attempt)
        if ctx.run.cache_hit is not None:
            span.set_attribute("callgate.cache_hit", ctx.run.cache_hit)
        self._judge(ctx, span)
        if self._shown is not None:
            shown, _ = self._shown(ctx)
            if shown is not None:
                span.set_attribute(ARGUMENTS, orjson.dumps(shown).decode())
        for one in ctx.run.suppressed or ():
            self._add_fault(span, one.error, f"{one.hook}.{one.stage}")
        if ctx.run.outcome is Outcome.SUSPENDED:
            return
        if ctx.run.error is not None:
            step = ctx.run.failed_in
            self._add_fault(span, ctx.run.error, "" if step is None else f"{step.name}.{step.stage}")
        if (kind := error_type(ctx)) is not None:
            span.set_attribute(ERROR_TYPE, kind)
            span.set_status(self._error)
            span.set_attribute("callgate.stage", str(ctx.run.failed_in.stage.value if ctx.run.failed_in else ""))

    def _judge(self, ctx: InvokeContext, span: Any) -> None:
        """Mark the span of a call that was not validated, or whose arguments a repairer wrote."""
        if (rules := ctx.run.plan.builtins.unvalidated) is not None:
            span.set_attribute("callgate.validated", False)
            span.set_attribute("callgate.no_schema_mode", str(rules.mode_of(ctx.run.no_schema)))
        if ctx.run.repair is None:
            return
        span.set_attribute("callgate.repaired", True)
        shown = None if self._shown is None else self._shown.repair(ctx)
        if shown is not None:
            span.set_attribute("callgate.repair.before", orjson.dumps(shown["before"]).decode())
            span.set_attribute("callgate.repair.after", orjson.dumps(shown["after"]).decode())

    @staticmethod
    def _add_fault(span: Any, error: BaseException, place: str) -> None:
        """Add an unexpected exception as an event, without any text; a decision is none."""
        fault = fault_of(error)
        if fault is not None:
            attributes = {"exception.type": type(fault).__qualname__, "exception.stacktrace": places_of(fault)}
            span.add_event("exception", {**attributes, "callgate.step": place})


def _add_event(ctx: InvokeContext, span: Any, name: str, attributes: Mapping[str, str | float]) -> None:
    """Add an event to a span. A tracer that fails is logged: it must not fail a call whose tool has run, or its retry."""
    try:
        span.add_event(name, attributes)
    except Exception as error:  # noqa: BLE001
        ctx.suppress(error)


_MARKED = frozenset(Stage) - {
    Stage.WILL_CREATE_INVOKE_CONTEXT,
    Stage.WILL_FINALIZE_INVOKE,
    Stage.ON_RETRY,
    Stage.AROUND_EXECUTE,  # it would make the plan wrap every tool
    Stage.WILL_READ_CACHE,  # a hook there counts as a cache
    Stage.DID_CACHE_HIT,
    Stage.DID_CACHE_MISS,
    Stage.WILL_ACQUIRE_QUOTA,  # an acquire needs its release
    Stage.DID_RELEASE_QUOTA,
    Stage.WILL_ACQUIRE_SEMAPHORE,
    Stage.DID_RELEASE_SEMAPHORE,
    Stage.ON_GIVE_UP,
}  # fmt: skip


def _marking(stage: Stage) -> object:
    def mark(self: Tracing, ctx: InvokeContext) -> None:
        self._passes(ctx, stage)

    mark.__name__ = stage.value
    return mark


for _stage in _MARKED:
    setattr(Tracing, _stage.value, _marking(_stage))


# ---------------------------------------------------------------------- traces


def current_trace() -> dict[str, str] | None:
    """Return the headers (W3C Trace Context) of the current span; None without a span."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers or None


@contextmanager
def continued(headers: Mapping[str, str] | None) -> Generator[None, None, None]:
    """Make spans in this context children of the span in the headers (W3C Trace Context)."""
    if headers is None or find_spec("opentelemetry") is None:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(token)
