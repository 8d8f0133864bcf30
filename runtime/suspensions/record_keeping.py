"""What a gate keeps beyond a call: its effect ledger and the calls that wait; and how one of these goes on."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from callgate.errors import Denied, GateClosed, InvocationError, NotPending, RegistrationError, Stale, Suspended
from callgate.hooks.context import InvokeContext
from callgate.hooks.facts import Suspension
from callgate.providers.principal import User
from callgate.providers.signing import SigningKeys
from callgate.providers.stores.base import Store
from callgate.providers.stores.effects import Effect
from callgate.runtime.call.failure import error_info
from callgate.runtime.call.invoke import run
from callgate.runtime.call.results import result_of
from callgate.runtime.effects.ledger import EffectOptions, Ledger
from callgate.runtime.effects.reconciling import reconcile
from callgate.runtime.effects.steps import reconcilers_of
from callgate.runtime.engine import CallOptions, Engine, apply_options
from callgate.runtime.lifespan.background import Chore
from callgate.runtime.plans import Plans
from callgate.runtime.suspensions.decisions import Decision
from callgate.runtime.suspensions.resumption import Bound, Resumed
from callgate.runtime.suspensions.suspensions import Pending, Suspensions, context_of_resumed, refused_context
from callgate.tools.calls import Outcome, ToolResult
from callgate.tools.definition import Effect as Kind
from callgate.tools.record import ToolRecord

RefreshUser: TypeAlias = Callable[[User], User | Awaitable[User | None] | None]
"""Who somebody is now: their roles and scopes may have changed since they called. None: nobody any more."""

KEPT_IN_MEMORY = 86_400.0
"""Seconds that a store in memory remembers a call that waits no more."""
SWEEP_WAITS = 30.0
"""Seconds between two looks for calls that have waited too long."""


class Records:
    """The effect ledger and the waiting calls of one gate, and what keeps them in order."""

    def __init__(
        self,
        engine: Engine,
        plans: Plans,
        options: EffectOptions | None,
        signing_keys: Iterable[str | bytes],
        policy_version: str,
    ) -> None:
        options, keys = options or EffectOptions(), SigningKeys(signing_keys)
        self.plans = plans
        self.keys = keys
        self.ledger = Ledger(engine.store, engine.monotonic, engine.wall_offset, options, self._ask)
        self.waits = Suspensions(lambda: self.ledger.store, keys, self.ledger.now, plans.of, policy_version)
        engine.ledger, engine.waits = self.ledger, self.waits
        self.chores = [
            Chore("leases of effects", options.every, self.ledger.renew, urgent=True),
            Chore("effects", options.every, lambda: self.ledger.keep_up(self._reconcilers)),
            Chore("waits", SWEEP_WAITS, self._sweep_waits),
        ]

    @property
    def store(self) -> Store:
        """Where they are: the gate's store, or memory where that keeps no such thing."""
        return self.ledger.store

    async def _sweep_waits(self) -> None:
        await self.waits.sweep()
        if not self.store.durable:  # memory is not for ever; what lies in a database is its operator's to prune
            await self.store.waits.prune(self.ledger.now() - KEPT_IN_MEMORY)

    async def _ask(self, tenant: str, effect: Effect, hooks: Sequence[Any]) -> Effect:
        return await reconcile(self.ledger.effects, self.ledger.now, tenant, effect, hooks)

    def _reconcilers(self) -> dict[str, list[Any]]:
        found = {plan.record.id: reconcilers_of(plan) for plan in self.plans.compiled()}
        return {tool: hooks for tool, hooks in found.items() if hooks}

    def refuse_forgetting(self, tools: Iterable[ToolRecord], *, durable: bool | None) -> None:
        """Refuse tools whose effects, or approvals, would be forgotten when the process ends (design 8).

        Raises:
            RegistrationError: names the tool, and says what to do.
        """
        for record in tools:
            if record.definition.effect is not Kind.READ and durable is not False and not self.store.durable:
                raise RegistrationError(
                    f"tool {record.id!r} may change the world (effect {record.definition.effect or 'undeclared'}) and "
                    f"the store ({self.store.name}) forgets at the end of the process what ran; give "
                    'Gate(store="sqlite:///file.db") or a PostgreSQL, declare effect="read", or say Gate(durable=False)'
                )
            if self.store.durable and not self.keys.lasting and self._asks_for_approval(record):
                raise RegistrationError(
                    f"tool {record.id!r} needs approval, and what waits for it could not be resumed after a restart: "
                    "give Gate(signing_keys=[...]) a secret, the same in every process"
                )

    def _asks_for_approval(self, record: ToolRecord) -> bool:
        """Whether the tool, its want of a schema, or a hook asks for approval of some of its calls."""
        return any(step.name == "approval" and step.hook is None for _, _, step in self.plans.of(record.id).before)


async def resume(
    gate: Any, records: Records, handle: str, decision: Decision, approver: User, options: CallOptions, *, trace: bool
) -> ToolResult:
    """See ``Gate.resume``."""
    if not gate.is_open:
        raise GateClosed("the gate is not open; use it inside `async with gate:`")
    if own := [name for name in ("idempotency_key", "request_id", "session_id") if options.get(name) is not None]:
        raise TypeError(f"a call that is resumed has its own {', '.join(own)}: what was approved is what runs")
    bound, decided = await records.waits.decide(handle, decision, approver)
    if isinstance(decided, Pending):
        return _still_waits(bound, decided)
    user = await current_user(gate.refresh_user, bound.user)
    if isinstance(decided, Denied) or user is None:
        refused = (
            decided if isinstance(decided, Denied) else Denied(f"{bound.user.id} is nobody any more", code="no_user")
        )
        ctx = refused_context(records.plans.of_refusal(bound.tool), bound, refused)
    else:
        ctx = _again(records, replace(bound, user=user), decided, trace=trace)
    apply_options(ctx, options)
    if trace:
        ctx.trace = []
    try:
        await run(ctx.plan, ctx)
    except NotPending as error:
        if ctx.failed_in is not ctx.plan.running:  # somebody else was quicker: told as whoever comes too late is told
            error.correlation_id = None
            raise
    except InvocationError:
        pass
    return result_of(ctx)


def _again(records: Records, bound: Bound, decided: Resumed, *, trace: bool) -> InvokeContext:
    plan = records.plans.of(bound.tool, trace=trace)
    if not records.waits.is_bound_to(plan, bound):
        raise Stale(f"{bound.tool} or its policies have changed while its user was looked up")
    return context_of_resumed(plan, bound, decided)


async def current_user(refresh: RefreshUser | None, known: User) -> User | None:
    """Who somebody is now; None when nobody any more."""
    if refresh is None:
        return known
    user = refresh(known)
    user = await user if inspect.isawaitable(user) else user
    return user if user is not None and (user.id, user.tenant) == (known.id, known.tenant) else None


def _still_waits(bound: Bound, pending: Pending) -> ToolResult:
    waits = Suspension(
        pending.kind, bound.prompt, bound.schema, None, pending.handle, rules=bound.rules, place=bound.place
    )
    return ToolResult(
        bound.call_id or "", bound.tool, Outcome.SUSPENDED, error=error_info(Suspended(waits)), pending=waits
    )
