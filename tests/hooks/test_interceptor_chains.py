"""The seven chain fixtures of MCP's interceptor proposal (SEP-2624) on the stages of a gate.

A mutator is a hook of ``will_normalize_input`` or ``will_transform_output``, a validator of ``will_authorize_input`` or
``will_validate_output``. Audit mode is ``mode="shadow"``, and failing open is ``on_failure="ignore"``. Each fixture has a
control: one setting of the chain is changed, and the outcome must be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from callgate import Effect, Gate, Hook, ToolDefinition, User
from callgate.hooks import InvokeContext
from callgate.tools import ToolRecord
from tests.harness.gate_options import gate_options

HELLO, LOUD = {"note": "hello"}, {"note": "HELLO"}
Payload = dict[str, Any]


def is_loud(payload: Payload) -> bool:
    return bool(payload["note"].isupper())


def crash(payload: Payload) -> bool:
    raise RuntimeError("the interceptor crashed")


VALIDATORS: dict[str, Callable[[Payload], bool]] = {
    "deny-all": lambda _: False,
    "require-uppercase-note": is_loud,
    "crash": crash,
}
MUTATE = "uppercase-note"


@dataclass(frozen=True)
class Interceptor:
    """One interceptor of a chain. ``early`` moves it before all others, to the stage where they begin: for controls."""

    behaviour: str
    audits: bool = False
    fails_open: bool = False
    early: bool = False

    def hook(self, phase: str) -> Hook:
        first, second = REQUEST if phase == "request" else RESPONSE
        mutates = self.behaviour == MUTATE

        def intercept(_: Hook, ctx: InvokeContext) -> None:
            payload: Any = ctx.input if phase == "request" else ctx.output
            if not mutates:
                if not VALIDATORS[self.behaviour](payload):
                    ctx.abort("denied by policy")
            elif phase == "request":
                ctx.input = {**payload, "note": payload["note"].upper()}
            else:
                ctx.output = {**payload, "note": payload["note"].upper()}

        stage = first if self.early or mutates == (phase == "request") else second
        made: Hook = type("Intercepts", (Hook,), {stage: intercept})()
        made.priority = 100 if self.early else 0
        if self.audits:
            made.mode = "shadow"
        if self.fails_open:
            made.on_failure = "ignore"
        return made


REQUEST = ("will_normalize_input", "will_authorize_input")
"""Where mutators change a request, and where validators judge it afterwards."""
RESPONSE = ("will_validate_output", "will_transform_output")
"""Where validators judge a response, and where mutators change it afterwards."""


@dataclass(frozen=True)
class Fixture:
    """A chain, and what becomes of a call: the payload that leaves the chain, or None for a denied one."""

    phase: str
    chain: tuple[Interceptor, ...]
    final: Payload | None
    control: tuple[Interceptor, ...]
    payload: Payload

    async def run(self, chain: tuple[Interceptor, ...]) -> Payload | None:
        """Return the payload that leaves the chain: the tool's arguments, or the output for the caller."""
        reached: list[Payload] = []

        async def execute(arguments: Payload, _ctx: Any) -> Payload:
            reached.append(dict(arguments))
            return self.payload

        definition = ToolDefinition("echo", "Echo.", {"type": "object"}, effect=Effect.READ)
        hooks = [one.hook(self.phase) for one in chain]
        async with Gate([ToolRecord(definition, execute)], hooks, **gate_options(durable=False, open=True)) as gate:
            result = await gate.call("echo", self.payload if self.phase == "request" else {}, user=User("ann"))
        if self.phase == "request":
            assert result.ok == bool(reached)
            return reached[0] if reached else None
        return dict(result.output) if result.ok else None


DENY, UPPER = Interceptor("deny-all"), Interceptor(MUTATE)
LOUD_ONLY, CRASH = Interceptor("require-uppercase-note"), Interceptor("crash")
FIXTURES = {
    "chain-request-order-mutate-then-validate": Fixture(
        "request", (LOUD_ONLY, UPPER), LOUD, (replace(LOUD_ONLY, early=True), UPPER), HELLO
    ),
    "chain-response-order-validate-then-mutate": Fixture(
        "response", (LOUD_ONLY, UPPER), None, (LOUD_ONLY, replace(UPPER, early=True)), HELLO
    ),
    "chain-validation-blocks": Fixture("request", (DENY,), None, (), HELLO),
    "chain-audit-never-blocks": Fixture("request", (replace(DENY, audits=True),), HELLO, (DENY,), HELLO),
    "chain-audit-mutation-shadowed": Fixture("request", (replace(UPPER, audits=True),), HELLO, (UPPER,), HELLO),
    "chain-fail-closed": Fixture("request", (CRASH,), None, (replace(CRASH, fails_open=True),), HELLO),
    "chain-fail-open": Fixture("request", (replace(CRASH, fails_open=True),), HELLO, (CRASH,), HELLO),
}


@pytest.mark.parametrize("name", FIXTURES)
async def test_a_chain_of_interceptors_ends_as_the_proposal_says(name: str) -> None:
    """The payload leaves the chain as it should, or the call is denied; the control ends otherwise."""
    fixture = FIXTURES[name]
    assert await fixture.run(fixture.chain) == fixture.final
    assert await fixture.run(fixture.control) != fixture.final, "the control"
