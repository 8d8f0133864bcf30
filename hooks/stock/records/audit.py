"""``Audit``: a tamper-evident audit log with a row for every call, and one before every effect."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeAlias, Unpack
from weakref import WeakKeyDictionary

import orjson

from callgate.errors import Denied, HookError, InvocationError, Suspended
from callgate.hooks.base import Hook
from callgate.hooks.context import InvokeContext
from callgate.hooks.state.facts import FROZEN
from callgate.hooks.state.host import CallPlan, Host
from callgate.hooks.state.run import Run
from callgate.hooks.stock.options import HookOptions, check_count, check_seconds, checked, set_options
from callgate.hooks.stock.records.audit_chain import Anchor, Chain, Closing, micros
from callgate.hooks.stock.records.audit_hydrations import HydrationRows
from callgate.hooks.stock.records.audit_signatures import row_signer
from callgate.hooks.stock.records.audit_sinks import is_async, to_function, to_log
from callgate.hooks.stock.records.masking import ShownInput, output_facts
from callgate.hooks.stock.store_time import store_time
from callgate.providers.logs import LogEvent, emit
from callgate.providers.principal import User
from callgate.providers.registry import MISSING
from callgate.providers.stores.base import AuditRow, Store
from callgate.providers.stores.ledger_writes import RowBody
from callgate.providers.stores.memory.audit import MemoryAudit
from callgate.providers.stores.server_answers import RECORD_GRACE
from callgate.tools.calls import Outcome
from callgate.tools.definition import Effect
from callgate.tools.values import SCALARS, clip, compact, hash_of

Sink: TypeAlias = Callable[[AuditRow], Awaitable[None] | None]
"""Takes one row; an exception means that the row is not written."""

VERSION = 1
"""The version of the row format: ``v`` in the body."""
_MAX_FACTS = 65_536  # bytes of an output that may wait in memory until its row is made


class Audit(Hook):
    """Audit log: a row with the outcome of every call, denied and invalid calls included, and a row before every effect.

    The rows of one gate form a segment: numbered without gaps, each with the hash of the row before it. ``callgate audit
    verify ADDRESS`` finds altered, missing and moved rows. A truncation after the last anchor cannot be detected. An
    anchor beside the rows does not protect against an attacker who can write both: keep anchors elsewhere, with
    *on_anchor* or from the log event ``audit.anchored``.

    A tool that is not declared ``read`` runs only after the row of its intent is written; otherwise the call is denied
    with the code ``audit_failed``. A failure to write the row of the outcome does not change the outcome: it is in
    ``ctx.suppressed``, and logged.

    Args:
        sink: ``"log"`` for log events, or a function of the ``AuditRow``, plain or async; default: the store.
        store: where rows are stored; default: the store of the gate.
        anchor_every: rows between two anchors; a further anchor is written when the gate closes.
        on_anchor: an async function of segment, number, hash and time (seconds since the epoch), called at each anchor.
        hydrations: rows of the calls that models propose. None: of those that do not run; True: of each; False: none.
        arguments: False leaves the masked arguments out of the rows; their hash stays.
        secret_keys: names of further members to mask when no hook masks the arguments.
        write_timeout: seconds that one write may take.
        options: the options of every hook: ``priority``, ``tools``, ``tags``, ``tenants``, ``mode``, ``filter``, ...

    Raises:
        HookError: a setting has an invalid value.
    """

    concern = "audit"
    priority = -1000  # at will_execute: after every hook that may refuse the attempt
    whole = True
    keeps_state = True
    note_hydration: HydrationRows | None = None

    @checked
    def __init__(
        self,
        sink: Literal["log"] | Sink | None = None,
        *,
        store: Store | None = None,
        anchor_every: int = 100,
        on_anchor: Anchor | None = None,
        hydrations: bool | None = None,
        arguments: bool = True,
        secret_keys: Collection[str] = (),
        write_timeout: float = 5.0,
        **options: Unpack[HookOptions],
    ) -> None:
        if sink is not None and store is not None:
            raise HookError("Audit writes to a sink or to a store; register two Audit hooks to write to both")
        if not (sink is None or sink == "log" or callable(sink)):
            raise HookError(f'Audit: sink is {sink!r:.80}; give "log" or a function of the row; a store goes to store=')
        check_count("Audit", "anchor_every", anchor_every)
        check_seconds("Audit", "write_timeout", write_timeout)
        self._sink = sink
        self._store = store
        self._every = anchor_every
        self._on_anchor = on_anchor
        self._shows = arguments
        if hydrations is not False:
            self.note_hydration = HydrationRows(self.chain_of, VERSION, shows=arguments, every=hydrations is True)
        self._timeout = write_timeout
        self._shown = ShownInput(secret_keys)
        self._chains: WeakKeyDictionary[object, Chain] = WeakKeyDictionary()
        self._host: Host[InvokeContext] | None = None
        self._chain: Chain | None = None
        set_options(self, options)

    # ------------------------------------------------------------------ stages

    def will_execute(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Write the intent row before each attempt of a tool that is not ``read``; without the row, no attempt."""
        claim = ctx.run.claim
        if ctx.run.plan.definition.effect is Effect.READ or (
            claim is not None and ctx.run.attempt == 1 and self in claim.together
        ):
            return None
        return self._intend(ctx)

    def will_audit(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Write the row of the outcome."""
        claim = ctx.run.claim
        if claim is not None and self in claim.together:
            claim.records = (*claim.records, (self, self._ended(ctx)))
            return None
        chain = self.chain_of(ctx.run.plan.host)
        tenant = ctx.user.tenant or ""
        if not chain.deferred:
            return self._add(ctx, chain, self._ended(ctx), RECORD_GRACE)
        facts = _facts(ctx)
        # One flat tuple: fewer objects for the garbage collector to visit.
        chain.noted.append((tenant, dict, self._ended(ctx)) if facts is None else (tenant, self._from_facts, *facts))
        if len(chain.noted) > chain.room:
            chain.trim()
        return None

    def did_audit(self, ctx: InvokeContext) -> Awaitable[None] | None:
        """Anchor the head if enough rows were written since the last anchor."""
        chain, host = self._chain, ctx.run.plan.host
        if chain is None or host is not self._host:
            chain = self.chain_of(host)
        return chain.anchor_if_due() if chain.unanchored >= self._every else None

    @staticmethod
    async def _add(ctx: InvokeContext, chain: Chain, body: dict[str, object], least: float | None = None) -> None:
        left = ctx.remaining()
        within = None if least is None else math.inf if left is None else max(left, least)
        with store_time(ctx, least=least):
            await chain.add(ctx.user.tenant or "", body, within)

    async def _intend(self, ctx: InvokeContext) -> None:
        try:
            body, chain = self._known(ctx, "intent", ctx.run.plan.host.monotonic()), self.chain_of(ctx.run.plan.host)
            if chain.deferred:
                chain.noted.append((ctx.user.tenant or "", dict, body))
            else:
                await self._add(ctx, chain, body)
        except Exception as error:
            raise Denied(f"the audit row of {ctx.tool_id} could not be written", code="audit_failed") from error

    # ------------------------------------------------------------------ together with the effect ledger

    def joins_ledger(self, store: Store) -> bool:
        """Return True when the ledger in *store* writes the rows of effects in its own transactions."""
        return store.durable and self._sink is None and (self._store is None or self._is_same(store))

    def _is_same(self, store: Store) -> bool:
        """Return True if the store of this hook is *store*, or becomes it in the namespace of the gate."""
        own: Any = self._store
        name, origin = str(getattr(store, "namespace", "")), getattr(store, "origin", store)
        bound: str = getattr(own, "namespace", name)
        if own is store or (getattr(own, "origin", own) == origin and bound in {"", name}):
            return True
        return bool(name and not bound and own.in_namespace(name) is store)

    def intent_row(self, ctx: InvokeContext) -> tuple[Chain, dict[str, object]]:
        """Give the intent row to the ledger, which writes it."""
        host = ctx.run.plan.host
        return self.chain_of(host), self._known(ctx, "intent", host.monotonic())

    # ------------------------------------------------------------------ rows

    def _known(self, ctx: InvokeContext, kind: str, at: float) -> RowBody:
        """Return the fields that every row has: integers, texts, and the masked arguments."""
        run, host = ctx.run, ctx.run.plan.host
        user, definition, call, hydration = run.user, run.plan.definition, run.tool_call, run.hydration
        shown, masked = self._shown(ctx) if self._shows else (None, [])
        row = RowBody(
            {
                "v": VERSION,
                "kind": kind,
                "at_us": round((at + host.clock.offset) * 1_000_000),  # as ``micros``
                "request_id": run.known_request_id,
                "call_id": None if call is None else call.id,
                "session_id": run.session_id,
                "depth": run.depth,
                "attempt": run.attempt,
                "tool": definition.name,
                "called": None if call is None or call.name == definition.name else clip(str(call.name)),
                "version": definition.version,
                "effect": None if definition.effect is None else definition.effect.value,
                "tenant": user.tenant,
                "user": user.id,
                "roles": sorted(user.roles),
                "scopes": sorted(user.scopes),
                "input_hash": _input_hash(run),
                "input": shown,
                "masked": masked,
                "rules": list(run.parse_rules if hydration is None else hydration.provenance.rules),
                "definition": definition.digest if run.unknown is None else None,
                **run.plan.builtins.judged(ctx),
                "wire": None if hydration is None else hydration.provenance.wire,
                "repaired": run.repair is not None,
            }
        )
        if run.repair is not None and self._shows:
            row["repair"] = {"at_us": micros(run.repair.at)} | (self._shown.repair(ctx) or {})
        return row

    def _from_facts(
        self,
        plan: CallPlan[InvokeContext],
        arguments: object,
        user: User,
        started: float,
        finished: float,
        output: Any,
        *names: object,
    ) -> dict[str, object]:
        """Make the outcome row from the facts of ``_facts``."""
        ctx = InvokeContext(plan, arguments, user, started)
        ctx.run.input_state, ctx.run.outcome, ctx.run.finished = FROZEN, Outcome.SUCCESS, finished
        ctx.run.output = orjson.loads(output) if output.__class__ is bytes else output
        for name, value in zip(_NAMES, names, strict=True):
            setattr(ctx.run, name, value)
        return self._ended(ctx)

    def _ended(self, ctx: InvokeContext) -> dict[str, object]:
        finished = ctx.run.finished if ctx.run.finished is not None else ctx.run.plan.host.monotonic()
        body = self._known(ctx, "outcome", finished)
        error = ctx.run.error
        body["outcome"] = (ctx.run.outcome or Outcome.ERROR).value
        body["started_us"] = micros(ctx.run.started + ctx.run.plan.host.clock.offset)
        body["duration_us"] = micros(finished - ctx.run.started)
        body["executed"] = ctx.run.executed
        body["cache_hit"] = ctx.run.cache_hit
        body["frozen"] = ctx.run.input_state == FROZEN
        if ctx.run.replayed:
            body["replayed"] = True
        if ctx.run.resumed is not None:
            body["approved_by"] = sorted({user.id for _, user, _ in ctx.run.resumed.bound.approvals})
        if ctx.run.deciders:
            body["decided_by"] = list(ctx.run.deciders)
        if error is None:
            body |= output_facts(ctx.run.output)
            body["output_validated"] = ctx.run.validate_response and ctx.run.plan.builtins.output is not None
            return body
        step, reason = ctx.run.failed_in or ctx.run.step, _reason(error)
        body["code"], body["error"] = code_of(ctx, error), type(error).__name__
        body["stage"], body["hook"], body["own"] = step.stage.value, step.name, step.hook is None
        if issues := getattr(error, "issues", ()):
            body["issues"] = [[clip(one.pointer), one.keyword] for one in issues]
        body["reason"] = None if reason is None else self._shown.text(reason, ctx.run.scrubber)
        return body

    # ------------------------------------------------------------------ where rows go

    def chain_of(self, host: Host[InvokeContext]) -> Chain:
        """Return the segment that this hook writes for a gate."""
        if host is self._host and self._chain is not None:
            return self._chain
        gate = host.origin  # a gate with further tools, as of an A2A task, writes the segment of its gate
        chain = self._chains.get(gate)
        if chain is None:
            chain = self._chains[gate] = self._open(gate)
            gate.at_close(Closing(chain, partial(self._forget, gate)), self)
        self._host, self._chain = host, chain
        return chain

    def _forget(self, gate: object) -> None:
        if self._chains.pop(gate, None) is self._chain:
            self._host = self._chain = None

    def _open(self, host: Host[InvokeContext]) -> Chain:
        sink = self._sink
        chain_of = partial(
            Chain,
            now=lambda: float(host.monotonic() + host.clock.offset),
            limit=self._timeout,
            every=self._every,
        )
        if sink is None:
            store = host.store if self._store is None else host.own_store(self._store)
            kept, writer = store.audit, getattr(store, "ledger", None)
            in_memory = type(kept) is MemoryAudit  # a subclass may await
            chain = chain_of(
                kept.append,
                self._anchoring(kept.anchor),
                in_place=in_memory,
                append=None if writer is None else writer.append,
                audit=kept,
                sign=row_signer(host.audit_keys, kept),
            )
            if isinstance(kept, MemoryAudit) and in_memory and self._on_anchor is None:
                chain.defer(kept.trim, kept.end)
                kept.noting.append(chain)
                kept.trim()
            return chain
        put = to_log if sink == "log" else to_function(sink)
        in_place = sink == "log" or not is_async(sink)
        return chain_of(put, self._anchoring(None), in_place=in_place, sign=row_signer(host.audit_keys, None))

    def _anchoring(self, kept: Anchor | None) -> Anchor:
        on_anchor = self._on_anchor

        async def anchor(segment: str, number: int, hash: str, at: float) -> None:
            emit(LogEvent.AUDIT_ANCHORED, segment=segment, number=number, hash=hash)
            if kept is not None:
                await kept(segment, number, hash, at)
            if on_anchor is not None:
                await on_anchor(segment, number, hash, at)

        return anchor


_NAMES = (
    "request_id",
    "tool_call",
    "session_id",
    "depth",
    "attempt",
    "parse_rules",
    "executed",
    "cache_hit",
    "validate_response",
)
_named_facts = attrgetter("known_request_id", *_NAMES[1:])


def _facts(ctx: InvokeContext) -> tuple[object, ...] | None:
    """Return the facts of a successful call, from which a row is made when the log is read; None for other calls.

    Only for calls whose facts cannot change later: flat arguments, which hooks and tools get as copies, and no masks.
    """
    run = ctx.run
    plan = run.plan
    if (
        run.error is not None
        or not plan.builtins.flat
        or run.input_state != FROZEN
        or run.masked is not MISSING
        or run.maskers
        or run.scrubber is not None
        or run.hydration is not None
        or run.resumed is not None
        or run.replayed
    ):
        return None
    output = run.output
    if output.__class__ not in SCALARS:
        try:
            output = compact(orjson.dumps(output))
        except TypeError:
            return None
        if len(output) > _MAX_FACTS:
            return None
    return plan, run.input, ctx.user, run.started, run.finished, output, *_named_facts(run)


def code_of(ctx: InvokeContext, error: BaseException) -> str:
    """Return the error code that the caller gets."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, InvocationError):
        return error.code
    if ctx.run.outcome is Outcome.DENIED:
        return "policy_error"
    return "tool_failed" if ctx.run.failed_in is ctx.run.plan.running else "hook_failed"


def _reason(error: BaseException) -> str | None:
    """Return the reason that a hook or the gate gave; never the text of an exception of a tool or a library."""
    if isinstance(error, Suspended):
        return getattr(error.pending, "kind", None)
    own = isinstance(error, InvocationError) and not error.__class__.__name__.startswith("Tool") and bool(error.args)
    return str(error.args[0]) if own else None


def _input_hash(run: Run[InvokeContext]) -> str | None:
    """Return the hash of the arguments themselves, also where their type identifies them by a part."""
    try:
        by_part = run.input_state == FROZEN and run.plan.builtins.identity is not None
        return hash_of(run.input) if by_part else run.hash_of_input()
    except (TypeError, ValueError, RecursionError):  # the input of the caller is not JSON
        return None
