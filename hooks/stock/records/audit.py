"""``Audit``: a row about every call that nobody can change unseen, and one before every effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from operator import attrgetter
from typing import Any, Literal, TypeAlias, Unpack
from weakref import WeakKeyDictionary

import orjson

from callgate.errors import Denied, HookError, InvocationError, Suspended
from callgate.hooks.base import Hook
from callgate.hooks.builtin import FROZEN
from callgate.hooks.context import InvokeContext
from callgate.hooks.stock.options import HookOptions, is_number, set_options
from callgate.hooks.stock.records.audit_chain import Anchor, Chain, Sealed, micros
from callgate.hooks.stock.records.audit_sinks import is_async, to_function, to_log
from callgate.hooks.stock.records.masking import ShownInput
from callgate.providers.ids import new_id
from callgate.providers.logs import Event, emit
from callgate.providers.registry import MISSING
from callgate.providers.stores.base import AuditRow, Store
from callgate.providers.stores.memory import MemoryAudit
from callgate.tools.calls import Outcome
from callgate.tools.definition import Effect
from callgate.tools.values import SCALARS, clip, compact, hash_of

Sink: TypeAlias = Callable[[AuditRow], Awaitable[None] | None]
"""Takes one row; what it raises means that the row is not written."""

VERSION = 1
"""Of the shape of a row's body: ``v`` in it."""


class Audit(Hook):
    """Writes a row about how every call ended, denied and invalid ones included, and one before every effect.

    Rows of one gate form a segment: numbered without gaps, each sealed with the hash of the one before. ``callgate audit
    verify ADDRESS`` finds rows that were changed, taken out or moved. The end of a segment can be cut off unseen as far
    back as its last anchor, and an anchor beside the rows helps only against those who cannot reach it: keep anchors
    elsewhere, by *on_anchor* or from the log event ``audit.anchored``.

    A tool that is not declared ``read`` runs only once a row says that it will: where that cannot be written the call is
    denied with code ``audit_failed``. A row about the end that cannot be written changes nothing any more; it is in
    ``ctx.suppressed`` and logged.

    Args:
        sink: ``"log"`` for log events, or a function of the ``AuditRow``, plain or async; default: the store.
        store: where rows go; default: the store of the gate.
        anchor_every: rows between two anchors; one more is written as the gate closes.
        on_anchor: an async function of segment, number, hash and time (seconds since the epoch), called at each anchor.
        arguments: False keeps the masked arguments out of the rows, and only their hash in.
        secret_keys: further names of keys whose values are masked where no hook masked the arguments.
        write_limit: seconds that one write may take.
        options: those of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ...

    Raises:
        HookError: a setting that means nothing.
    """

    concern = "audit"
    priority = -1000  # will_execute: after every hook that may still refuse the attempt

    def __init__(
        self,
        sink: Literal["log"] | Sink | None = None,
        store: Store | None = None,
        *,
        anchor_every: int = 100,
        on_anchor: Anchor | None = None,
        arguments: bool = True,
        secret_keys: Collection[str] = (),
        write_limit: float = 5.0,
        **options: Unpack[HookOptions],
    ) -> None:
        if sink is not None and store is not None:
            raise HookError("Audit writes to a sink or to a store; register it twice to write to both")
        if not (sink is None or sink == "log" or callable(sink)):
            raise HookError(f'Audit: a sink is "log" or a function of the row, not {sink!r}')
        if not is_number(anchor_every, least=1, whole=True):
            raise HookError(f"Audit: anchor_every is {anchor_every!r}; give a number of rows, 1 at the least")
        if not is_number(write_limit, least=0.001):
            raise HookError(f"Audit: write_limit is {write_limit!r}; give seconds above 0")
        self._sink = sink
        self._store = store
        self._every = anchor_every
        self._on_anchor = on_anchor
        self._shows = arguments
        self._limit = write_limit
        self._shown = ShownInput(secret_keys)
        self._chains: WeakKeyDictionary[Any, Chain] = WeakKeyDictionary()
        self._host: Any = None
        self._chain: Chain | None = None
        set_options(self, options)

    # ------------------------------------------------------------------ stages

    def will_execute(self, ctx: InvokeContext) -> Any:
        """Before each attempt of a tool that may change the world: a row that says so, or no attempt."""
        claim = ctx.claim
        if ctx.tool.effect is Effect.READ or (claim is not None and ctx.attempt == 1 and self in claim.together):
            return None
        return self._intend(ctx)

    def will_audit(self, ctx: InvokeContext) -> Any:
        """The row about how the call ended."""
        claim = ctx.claim
        if claim is not None and self in claim.together:
            claim.records = (*claim.records, (self, self._ended(ctx)))
            return None
        chain = self._chain_of(ctx.plan.host)
        tenant = ctx.user.tenant or ""
        if not chain.keeps_back:
            return chain.add(tenant, self._ended(ctx))
        facts = _facts(ctx)
        # One flat tuple: the fewer containers are kept, the less the garbage collector has to look at.
        chain.noted.append((tenant, dict, self._ended(ctx)) if facts is None else (tenant, self._from_facts, *facts))
        return None

    def did_audit(self, ctx: InvokeContext) -> Any:
        """Anchor the head when enough rows came since the last time."""
        chain = self._chain_of(ctx.plan.host)
        return chain.anchor_if_due() if chain.unanchored >= self._every else None

    async def _intend(self, ctx: InvokeContext) -> None:
        try:
            body, chain = self._known(ctx, "intent", ctx.host.monotonic()), self._chain_of(ctx.host)
            if chain.keeps_back:
                chain.noted.append((ctx.user.tenant or "", dict, body))
            else:
                await chain.add(ctx.user.tenant or "", body)
        except Exception as error:
            raise Denied(f"no audit record of {ctx.tool_id} could be written", code="audit_failed") from error

    # ------------------------------------------------------------------ together with the effect ledger

    def joins_ledger(self, store: Store) -> bool:
        """Whether its rows about an effect are written in the transactions of the ledger, which is in *store*."""
        return store.durable and self._sink is None and (self._store is None or self._store is store)

    def sealing_intent(self, ctx: InvokeContext) -> AbstractAsyncContextManager[Sealed]:
        """The row that says that a tool will run."""
        return self.sealing(ctx.host, self._known(ctx, "intent", ctx.host.monotonic()))

    def sealing(self, host: Any, body: dict[str, Any]) -> AbstractAsyncContextManager[Sealed]:
        """A row, to be written by the ledger."""
        return self._chain_of(host).sealing([body])

    # ------------------------------------------------------------------ rows

    def _known(self, ctx: InvokeContext, kind: str, at: float) -> dict[str, Any]:
        """What is known of a call at any time; integers, texts, and what is masked of the arguments."""
        user, definition, call = ctx.user, ctx.plan.definition, ctx._call
        shown, masked = self._shown(ctx) if self._shows else (None, [])
        hydration = ctx.hydration
        return {
            "v": VERSION,
            "kind": kind,
            "at_us": micros(at + ctx.host.wall_offset),
            "request_id": ctx.request_id,
            "call_id": None if call is None else call.id,
            "session_id": ctx.session_id,
            "depth": ctx.depth,
            "attempt": ctx.attempt,
            "tool": definition.name,
            "called": None if call is None or call.tool == definition.name else clip(str(call.tool)),
            "version": definition.version,
            "effect": None if definition.effect is None else definition.effect.value,
            "tenant": user.tenant,
            "user": user.id,
            "roles": sorted(user.roles),
            "scopes": sorted(user.scopes),
            "input_hash": _input_hash(ctx),
            "input": shown,
            "masked": masked,
            "rules": list(ctx.parse_rules if hydration is None else hydration.provenance.rules),
            "repaired": hydration is not None and hydration.provenance.repaired,
        }

    def _from_facts(
        self, plan: Any, arguments: Any, user: Any, started: float, finished: float, output: Any, *names: Any
    ) -> dict[str, Any]:
        """The row that the context would have made when it ended."""
        ctx: Any = InvokeContext(plan, arguments, user, started)
        ctx._input_state, ctx.outcome, ctx.finished = FROZEN, Outcome.SUCCESS, finished
        ctx._output = orjson.loads(output) if output.__class__ is bytes else output
        for name, value in zip(_NAMES, names, strict=True):
            setattr(ctx, name, value)
        return self._ended(ctx)

    def _ended(self, ctx: InvokeContext) -> dict[str, Any]:
        finished = ctx.finished if ctx.finished is not None else ctx.host.monotonic()
        body = self._known(ctx, "outcome", finished)
        error = ctx._error
        body["outcome"] = (ctx.outcome or Outcome.ERROR).value
        body["started_us"] = micros(ctx.started + ctx.host.wall_offset)
        body["duration_us"] = micros(finished - ctx.started)
        body["executed"] = ctx.executed
        body["cache_hit"] = ctx.cache_hit
        body["frozen"] = ctx._input_state == FROZEN
        if ctx.replayed:
            body["replayed"] = True
        if ctx.resumed is not None:
            body["approved_by"] = sorted({user.id for _, user, _ in ctx.resumed.bound.approvals})
        if error is None:
            body["output_hash"] = _safe_hash(ctx._output)
            body["output_validated"] = ctx.validate_response and ctx.plan.builtins.output is not None
            return body
        step = ctx.failed_in or ctx.step
        reason = _reason(error)
        body["code"] = code_of(ctx, error)
        body["error"] = type(error).__name__
        body["stage"], body["hook"], body["own"] = step.stage.value, step.name, step.hook is None
        body["reason"] = None if reason is None else self._shown.text(reason, ctx.scrubber)
        return body

    # ------------------------------------------------------------------ where rows go

    def _chain_of(self, host: Any) -> Chain:
        """The segment that this hook writes for a gate."""
        if host is self._host and self._chain is not None:
            return self._chain
        chain = self._chains.get(host)
        if chain is None:
            chain = self._chains[host] = self._open(host)
            host.at_close(_Closing(chain))
        self._host, self._chain = host, chain
        return chain

    def _open(self, host: Any) -> Chain:
        sink = self._sink
        if sink is None:
            kept = (self._store or host.store).audit
            in_memory = type(kept) is MemoryAudit  # a subclass may wait
            chain = Chain(
                kept.append,
                self._anchoring(kept.anchor),
                lambda: float(host.monotonic() + host.wall_offset),
                in_place=in_memory,
                limit=self._limit,
                every=self._every,
            )
            if isinstance(kept, MemoryAudit) and in_memory and self._on_anchor is None:
                chain.keep_back()
                kept.before_reading.append(chain.settle)
            return chain
        put = to_log if sink == "log" else to_function(sink)
        in_place = sink == "log" or not is_async(sink)
        return Chain(
            put,
            self._anchoring(None),
            lambda: float(host.monotonic() + host.wall_offset),
            in_place=in_place,
            limit=self._limit,
            every=self._every,
        )

    def _anchoring(self, kept: Anchor | None) -> Anchor:
        told = self._on_anchor

        async def anchor(segment: str, number: int, hash: str, at: float) -> None:
            emit(Event.AUDIT_ANCHORED, segment=segment, number=number, hash=hash)
            if kept is not None:
                await kept(segment, number, hash, at)
            if told is not None:
                await told(segment, number, hash, at)

        return anchor


class _Closing:
    """Anchors a segment as its gate closes; what fails there keeps nothing else from being closed."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    async def __call__(self) -> None:
        try:
            await self.chain.close()
        except (Exception, asyncio.CancelledError) as error:
            emit(Event.PROVIDER_FAILED, provider="audit", phase="anchor", error=error)
            if not isinstance(error, Exception):
                raise


_NAMES = (
    "_request_id",
    "_call",
    "session_id",
    "depth",
    "attempt",
    "parse_rules",
    "executed",
    "cache_hit",
    "validate_response",
)
_their = attrgetter(*_NAMES)


def _facts(ctx: Any) -> tuple[Any, ...] | None:
    """What a row about a plain success is made from, taken now and made into a row when somebody reads; None for others.

    Only where nobody can change what is kept: flat arguments, of which hooks and the tool get copies, and no masks.
    """
    plan = ctx.plan
    if (
        ctx._error is not None
        or not plan.builtins.flat
        or ctx._input_state != FROZEN
        or ctx._masked is not MISSING
        or ctx._maskers
        or ctx.scrubber is not None
        or ctx.hydration is not None
        or ctx.resumed is not None
        or ctx.replayed
    ):
        return None
    output = ctx._output
    if output.__class__ not in SCALARS:
        try:
            output = compact(orjson.dumps(output))
        except TypeError:
            return None
    if ctx._request_id is None:
        ctx._request_id = new_id()
    return plan, ctx._input, ctx.user, ctx.started, ctx.finished, output, *_their(ctx)


def code_of(ctx: Any, error: BaseException) -> str:
    """The code that a caller sees for an error."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, InvocationError):
        return error.code
    if ctx.outcome is Outcome.DENIED:
        return "policy_error"
    return "tool_failed" if ctx.failed_in is ctx.plan.running else "hook_failed"


def _reason(error: BaseException) -> str | None:
    """What a hook said, or which rule was broken; nothing of what a tool or a library said: it may hold anything."""
    if isinstance(error, Suspended):
        return getattr(error.pending, "kind", None)
    own = isinstance(error, InvocationError) and not error.__class__.__name__.startswith("Tool") and bool(error.args)
    return str(error.args[0]) if own else None


def _input_hash(ctx: Any) -> str | None:
    if ctx._input_state == FROZEN:
        return _safe_hash(ctx._input)
    try:
        return ctx.input_hash  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError):  # what a caller handed over is no JSON
        return None


def _safe_hash(value: Any) -> str | None:
    try:
        return hash_of(value)
    except (TypeError, ValueError, RecursionError):
        return None


__all__ = ["Audit"]
