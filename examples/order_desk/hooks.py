"""The desk's policies: stock hooks with their settings, and one of its own, ``ForgetAfterWrite``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate import Effect, Hook, InvokeContext, ToolDefinition, User
from callgate.hooks import (
    Audit,
    Authorize,
    Backoff,
    Cache,
    CircuitBreaker,
    Concurrency,
    Consent,
    Deadline,
    FeatureFlags,
    Metrics,
    OutputPolicy,
    Quota,
    Redact,
    Retry,
    Secrets,
    Timeout,
    Tracing,
    permit,
)
from examples.order_desk.desk import CARRIER_KEY, Carrier
from examples.order_desk.telemetry import Telemetry

REFUND_LIMIT = 50_000
"""The maximum refund in one call, in cents, for every user."""


class ForgetAfterWrite(Hook):
    """A hook of the desk's own: drops a tenant's cache entries after a tool with an effect has started.

    A hook is an object with methods named after stages. It keeps the state of one call in ``ctx.data``, so one object
    serves concurrent calls.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def will_execute(self, ctx: InvokeContext) -> None:
        ctx.data[self] = ctx.tool.effect is not Effect.READ

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        if ctx.data.get(self):  # also after a failure, because the tool may have written
            await self.cache.drop_tags(ctx.tenant, ["desk"], store=ctx.run.plan.host.store)


@dataclass(frozen=True)
class Policies:
    """All hooks; those that the desk uses at run time are also attributes."""

    hooks: list[Hook]
    consent: Consent
    concurrency: Concurrency
    flags: dict[str, bool]


def policies(telemetry: Telemetry) -> Policies:
    """Make the hooks of one gate. Stages and priorities decide their order, the list does not."""
    consent = Consent(tools={"refund"}, scope="refunds")  # asks once; then it remembers for 30 days
    concurrency = Concurrency(2, by="user", queue=4, queue_timeout=1.0)
    cache = Cache(60, entry_tags=["desk"])
    flags: dict[str, bool] = {}  # switches; an OpenFeature client in a service
    hooks: list[Hook] = [
        # who may
        Authorize(
            permit("staff-works-here", tags={"orders", "stock", "carriers"}, roles={"clerk", "manager"}),
            permit("managers-refund", tags={"money"}, roles={"manager"}),
        ),
        Authorize(
            permit("up-to-the-limit", when_input=_within_limit),
            tags={"money"},
            public="A person has to make refunds of this size.",
        ),
        consent,
        FeatureFlags(flags, keys="desk.{tool}", default=True),  # on, until an operator switches it off
        # how often, how many at a time, how long, how stubbornly
        Quota("3/minute", by="user", tools={"quote_shipping"}),
        concurrency,
        Deadline(2.0),
        Timeout(0.2, tags={"carriers"}),
        Retry(2, wait=Backoff(initial=0.02), tools={"track_parcel"}),
        CircuitBreaker(failure_threshold=2, open_for=30, by=("tool", _carrier), tools={"track_parcel"}),
        # what is recorded, and what is masked
        cache,
        ForgetAfterWrite(cache),
        Redact("street", "postcode", detectors=["email", "card"], at=["input"]),
        Secrets({"carrier_key": _carrier_key}),
        OutputPolicy(400, on_too_large="truncate"),
        # what is written down
        Audit(),
        Metrics(telemetry.meter_provider),
        Tracing(telemetry.tracer_provider),
    ]
    return Policies(hooks, consent, concurrency, flags)


def _within_limit(_user: User, _tool: ToolDefinition, arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["cents"] <= REFUND_LIMIT)


def _carrier(ctx: InvokeContext) -> str:
    """Return the key of the circuit: one circuit per carrier."""
    return str(ctx.input.get("carrier", Carrier.SWIFT))


def _carrier_key(_ctx: InvokeContext) -> str:
    """A source of a secret; ``from_env("CARRIER_KEY")`` or ``from_keyring(...)`` in a service."""
    return CARRIER_KEY
