"""The desk's policies: stock hooks with their settings, and one of its own, ``ForgetAfterWrite``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callgate import (
    Audit,
    Authorize,
    Backoff,
    Cache,
    CircuitBreaker,
    Concurrency,
    Consent,
    Deadline,
    Effect,
    FeatureFlags,
    Hook,
    InvokeContext,
    Metrics,
    OutputPolicy,
    Quota,
    Redact,
    Retry,
    Secrets,
    Timeout,
    ToolDefinition,
    Tracing,
    User,
    permit,
)
from examples.order_desk.desk import CARRIER_KEY, Carrier
from examples.order_desk.telemetry import Telemetry

REFUND_LIMIT = 50_000
"""Cents that a model may give back in one call, whoever it works for."""


class ForgetAfterWrite(Hook):
    """A hook of the desk's own: forgets what a tenant's reads left in the cache once a tool was started that may write.

    A hook is an object with methods that are named after stages. What it must remember of one call it keeps in
    ``ctx.data``, so that one object serves all calls at once.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def will_execute(self, ctx: InvokeContext) -> None:
        ctx.data[self] = ctx.tool.effect is not Effect.READ

    async def will_finalize_invoke(self, ctx: InvokeContext) -> None:
        if ctx.data.get(self):  # also when it failed: who knows how far it came
            await self.cache.drop_tags(ctx.tenant, ["desk"], store=ctx.host.store)


@dataclass(frozen=True)
class Policies:
    """All hooks, and by name those that the desk has something to say to while it is open."""

    hooks: list[Hook]
    consent: Consent
    concurrency: Concurrency
    flags: dict[str, bool]


def policies(telemetry: Telemetry) -> Policies:
    """The hooks of one gate. Their order here does not matter: each has its stages and its priority."""
    consent = Consent(tools={"refund"}, scope="refunds")  # asks once; then it remembers for 30 days
    concurrency = Concurrency(2, by="user", queue=4, wait=1.0)
    cache = Cache(ttl=60, tags=["desk"])
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
        FeatureFlags(source=flags, keys="desk.{tool}", missing="on"),  # on, unless somebody pulls the switch
        # how often, how many at a time, how long, how stubbornly
        Quota("3/minute", by="user", tools={"quote_shipping"}),
        concurrency,
        Deadline(2.0),
        Timeout(0.2, tags={"carriers"}),
        Retry(2, wait=Backoff(initial=0.02), tools={"track_parcel"}),
        CircuitBreaker(failures=2, open_for=30, by=("tool", _carrier), tools={"track_parcel"}),
        # what is kept, and what nobody sees
        cache,
        ForgetAfterWrite(cache),
        Redact(keys=["street", "postcode"], detectors=["email", "card"], at=["input"]),
        Secrets({"carrier_key": _carrier_key}),
        OutputPolicy(max_bytes=400, on_too_large="truncate"),
        # what is written down
        Audit(),
        Metrics(telemetry.meter_provider),
        Tracing(telemetry.tracer_provider),
    ]
    return Policies(hooks, consent, concurrency, flags)


def _within_limit(_user: User, _tool: ToolDefinition, arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["cents"] <= REFUND_LIMIT)


def _carrier(ctx: InvokeContext) -> str:
    """Each carrier has a circuit of its own."""
    return str(ctx.input.get("carrier", Carrier.SWIFT))


def _carrier_key(_ctx: InvokeContext) -> str:
    """A source of a secret; ``from_env("CARRIER_KEY")`` or ``from_keyring(...)`` in a service."""
    return CARRIER_KEY
