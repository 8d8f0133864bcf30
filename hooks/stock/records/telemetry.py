"""``Metrics`` and ``Tracing``: calls as OpenTelemetry sees them; nothing at all while no provider is given.

Names follow the semantic conventions for generative AI (``execute_tool``), which are still in development; what they
have no name for is under ``callgate.``. The package of the conventions is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Unpack

import orjson

from callgate.errors import HookError, InvocationError
from callgate.hooks.base import Hook, not_overridden
from callgate.hooks.context import InvokeContext
from callgate.hooks.stages import Stage
from callgate.hooks.stock.options import HookOptions, set_options
from callgate.hooks.stock.records.masking import ShownInput
from callgate.providers.registry import MISSING
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


def error_type(ctx: Any) -> str | None:
    """What ended a call, in few different words: the code of its error, or the type of what the tool or a hook raised."""
    error = ctx._error
    if error is None:
        return None
    if ctx.outcome is Outcome.CANCELLED:
        return "cancelled"
    return error.code if isinstance(error, InvocationError) else type(error).__name__


class Metrics(Hook):
    """Counts calls and measures how long they take.

    ``gen_ai.execute_tool.duration`` is a histogram in seconds, by tool and, for calls that failed, ``error.type``;
    ``callgate.calls`` counts all calls by tool, outcome and code, ``callgate.denials`` those that were refused and
    ``callgate.errors`` those that broke, by tool and code. No user, tenant or id is on any of them.

    Args:
        meter_provider: an OpenTelemetry ``MeterProvider``, such as ``opentelemetry.metrics.get_meter_provider()``; None
            measures nothing, imports nothing, and costs nothing.
        options: those of every hook: ``tools``, ``tags``, ``tenants``, ...
    """

    concern = "metrics"

    def __init__(self, meter_provider: Any = None, **options: Unpack[HookOptions]) -> None:
        self._calls: Any = None
        if meter_provider is not None:
            meter = _from(meter_provider, "get_meter", "Metrics")
            self._calls = meter.create_counter("callgate.calls", unit="{call}", description="calls that ended")
            self._denials = meter.create_counter(
                "callgate.denials", unit="{call}", description="calls that were refused"
            )
            self._errors = meter.create_counter("callgate.errors", unit="{call}", description="calls that broke")
            self._duration = meter.create_histogram(
                "gen_ai.execute_tool.duration", unit="s", description="time from the start of a call to its records"
            )
        else:
            self.leaves_out = not_overridden(self, Metrics, (Stage.ON_METRICS,))
        set_options(self, options)

    def on_metrics(self, ctx: InvokeContext) -> None:
        """One call has ended."""
        tool, outcome, kind = ctx.plan.definition.name, ctx.outcome or Outcome.ERROR, error_type(ctx)
        measured = {OPERATION: "execute_tool", TOOL: tool}
        told = {TOOL: tool, "callgate.outcome": outcome.value}
        if kind is not None:
            measured[ERROR_TYPE] = kind
            told["callgate.code"] = kind
            if outcome in _REFUSED:
                self._denials.add(1, {TOOL: tool, "callgate.code": kind})
            elif outcome in _FAILED:
                self._errors.add(1, {TOOL: tool, "callgate.code": kind})
        self._calls.add(1, told)
        self._duration.record(ctx.duration or 0.0, measured)


class _Span:
    """What a call's span needs until it ends."""

    __slots__ = ("mark", "span", "stage", "token")

    def __init__(self, span: Any, token: Any) -> None:
        self.span = span
        self.token = token
        self.stage: Stage | None = None
        self.mark = 0.0


class Tracing(Hook):
    """One span ``execute_tool NAME`` a call: from its first stage to its last, whatever happens in between.

    Its parent is the span that is current where the gate is called; what the tool and hooks do, nested calls included,
    lies under it. A refused, failed or cancelled call has ``error.type`` and status ERROR, without any text. Attempts
    after the first are events.

    Args:
        tracer_provider: an OpenTelemetry ``TracerProvider``, such as ``opentelemetry.trace.get_tracer_provider()``; None
            traces nothing, imports nothing, and costs nothing.
        arguments: put the masked arguments on the span, as ``gen_ai.tool.call.arguments``.
        stages: an event ``callgate.stage`` for each stage, with its seconds.
        secret_keys: further names of keys whose values are masked where no hook masked the arguments.
        options: those of every hook: ``tools``, ``tags``, ``tenants``, ...

    Raises:
        HookError: the provider is none, or OpenTelemetry is not installed.
    """

    concern = "tracing"
    priority = 10_000  # the span begins before, and covers, what every other hook does

    def __init__(
        self,
        tracer_provider: Any = None,
        *,
        arguments: bool = False,
        stages: bool = False,
        secret_keys: Collection[str] = (),
        **options: Unpack[HookOptions],
    ) -> None:
        self._tracer: Any = None
        self._key = object()
        self._shown = ShownInput(secret_keys) if arguments else None
        if tracer_provider is not None:
            self._tracer = _from(tracer_provider, "get_tracer", "Tracing")
            try:
                from opentelemetry import context, trace
            except ImportError:
                raise HookError('Tracing needs OpenTelemetry: pip install "callgate[otel]"') from None
            self._attach, self._detach = context.attach, context.detach
            self._with_span, self._internal = trace.set_span_in_context, trace.SpanKind.INTERNAL
            self._error = trace.Status(trace.StatusCode.ERROR)
        self._marks = stages
        unused: Iterable[Stage] = Stage if tracer_provider is None else () if stages else _MARKED
        self.leaves_out = not_overridden(self, Tracing, unused)
        set_options(self, options)

    def will_create_invoke_context(self, ctx: InvokeContext) -> None:
        """Begin the span and make it the current one."""
        self._begin(ctx)
        if self._marks:
            self._passes(ctx, Stage.WILL_CREATE_INVOKE_CONTEXT)

    def on_retry(self, ctx: InvokeContext) -> None:
        """An attempt after the first."""
        kept = ctx.data.get(self._key)
        if kept is not None:
            kept.span.add_event("callgate.retry", {"callgate.attempt": ctx.attempt})

    def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        """End the span and bring back the one that was current before."""
        if self._marks:
            self._passes(ctx, None)
        kept = ctx.data.pop(self._key, MISSING)
        if kept is MISSING:  # another hook ended the call before this one saw it
            kept = self._begin(ctx, current=False)
        try:
            self._finish(ctx, kept.span)
        finally:
            kept.span.end()
            if kept.token is not None:
                self._detach(kept.token)

    def _passes(self, ctx: Any, stage: Stage | None) -> None:
        """Note the time at a stage; ``_MARKED`` are those that can be passed without changing what the plan does."""
        kept = ctx.data.get(self._key)
        if kept is None:
            return
        now = ctx.host.monotonic()
        if kept.stage is not None:
            kept.span.add_event(
                "callgate.stage", {"callgate.stage": kept.stage.value, "callgate.stage.duration": now - kept.mark}
            )
        kept.stage, kept.mark = stage, now

    def _begin(self, ctx: Any, *, current: bool = True) -> _Span:
        definition, call = ctx.plan.definition, ctx._call
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
        if ctx.session_id is not None:
            attributes[CONVERSATION] = ctx.session_id
        if ctx.user.tenant is not None:
            attributes["callgate.tenant"] = ctx.user.tenant
        span = self._tracer.start_span(f"execute_tool {definition.name}", kind=self._internal, attributes=attributes)
        kept = _Span(span, None)
        if current:
            kept.token = self._attach(self._with_span(span))
            ctx.data[self._key] = kept
        return kept

    def _finish(self, ctx: Any, span: Any) -> None:
        if not span.is_recording():
            return
        span.set_attribute("callgate.outcome", (ctx.outcome or Outcome.ERROR).value)
        span.set_attribute("callgate.executed", ctx.executed)
        if ctx.attempt > 1:
            span.set_attribute("callgate.attempt", ctx.attempt)
        if ctx.cache_hit is not None:
            span.set_attribute("callgate.cache_hit", ctx.cache_hit)
        if self._shown is not None:
            shown, _ = self._shown(ctx)
            if shown is not None:
                span.set_attribute(ARGUMENTS, orjson.dumps(shown).decode())
        if ctx.outcome is Outcome.SUSPENDED:
            return
        if (kind := error_type(ctx)) is not None:
            span.set_attribute(ERROR_TYPE, kind)
            span.set_status(self._error)
            span.set_attribute("callgate.stage", str(ctx.failed_in.stage.value if ctx.failed_in else ""))


_MARKED = frozenset(Stage) - {
    Stage.WILL_CREATE_INVOKE_CONTEXT,
    Stage.WILL_FINALIZE_INVOKE,
    Stage.ON_RETRY,
    Stage.AROUND_EXECUTE,  # it would make a roundabout of every plan
    Stage.WILL_READ_CACHE,  # who looks there has looked into a cache
    Stage.DID_CACHE_HIT,
    Stage.DID_CACHE_MISS,
    Stage.WILL_ACQUIRE_QUOTA,  # who acquires gives back
    Stage.DID_RELEASE_QUOTA,
    Stage.WILL_ACQUIRE_SEMAPHORE,
    Stage.DID_RELEASE_SEMAPHORE,
    Stage.ON_GIVE_UP,
}  # fmt: skip


def _marking(stage: Stage) -> Any:
    def mark(self: Tracing, ctx: InvokeContext) -> None:
        self._passes(ctx, stage)

    mark.__name__ = stage.value
    return mark


for _stage in _MARKED:
    setattr(Tracing, _stage.value, _marking(_stage))


def _from(provider: Any, method: str, hook: str) -> Any:
    make = getattr(provider, method, None)
    if not callable(make):
        raise HookError(f"{hook}: {type(provider).__name__} is no provider of OpenTelemetry: it has no {method}()")
    return make("callgate")


__all__ = ["Metrics", "Tracing"]


# ---------------------------------------------------------------------- traces


def current_trace() -> dict[str, str] | None:
    """The headers (W3C Trace Context) of the span that is current here; None where nobody traces."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return headers or None


@contextmanager
def continued(headers: Mapping[str, str] | None) -> Generator[None, None, None]:
    """Spans in here are children of the span that the headers tell of."""
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
