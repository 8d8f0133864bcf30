"""Functions that an application gives to stock hooks: one that raises, or returns another type, opens no gate."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from callgate import Gate, Hook, InvokeContext, tool
from callgate.hooks import (
    Authorize,
    Cache,
    CircuitBreaker,
    Concurrency,
    Consent,
    FeatureFlags,
    Quota,
    RequireApproval,
    Retry,
    Secrets,
    forbid,
    permit,
    sampled,
)
from tests.world import USER


class Fault(LookupError):
    """The fault of a function of the application."""


def raising(*_: object) -> Any:
    raise Fault


async def later() -> bool:
    return True


FAULTS: dict[str, Callable[..., Any]] = {
    "raises": raising,
    "None": lambda *_: None,
    "an object": lambda *_: object(),
    "a coroutine": lambda *_: later(),
    "NaN": lambda *_: float("nan"),
    "0": lambda *_: 0,
    "an empty text": lambda *_: "",
    "an empty list": lambda *_: [],
}
BEFORE: dict[str, Callable[[Any], Hook]] = {
    "RequireApproval(when=)": lambda given: RequireApproval(when=given),
    "filter=": lambda given: Authorize(forbid("all"), filter=given),
    "filter= of a sample": lambda given: sampled(Authorize(forbid("all"), filter=given), 100),
    "FeatureFlags": FeatureFlags,
    "Authorize(permit(when=))": lambda given: Authorize(permit("p", when=given)),
    "Authorize(permit(when_input=))": lambda given: Authorize(permit("p", when_input=given)),
    "Quota(by=)": lambda given: Quota("9/hour", by=given, name="q"),
    "Quota(by=[..., ...])": lambda given: Quota("9/hour", by=["user", given], name="q"),
    "Quota(cost=)": lambda given: Quota("9/hour", cost=given),
    "Concurrency(by=)": lambda given: Concurrency(2, by=given, name="c"),
    "CircuitBreaker(by=)": lambda given: CircuitBreaker(2, by=given, name="b"),
    "Cache(vary_by=)": lambda given: Cache(60, vary_by=[given]),
    "Consent": Consent,
    "Consent(text=)": lambda given: Consent("use", text=given),
    "Secrets": lambda given: Secrets({"key": given}),
}
AFTER: dict[str, Callable[[Any], Hook]] = {
    "Retry(on=)": lambda given: Retry(3, on=given, wait=lambda _: 0.0),
    "Retry(wait=)": lambda given: Retry(3, wait=given),
    "CircuitBreaker(on=)": lambda given: CircuitBreaker(2, on=given),
    "Quota(refund_on=)": lambda given: Quota("9/hour", refund_on=given),
}
AFTER_SUCCESS: dict[str, Callable[[Any], Hook]] = {
    **AFTER,
    "Cache(entry_tags=)": lambda given: Cache(60, entry_tags=given),
}
MEANT = {
    ("filter=", "a coroutine"),
    ("filter= of a sample", "a coroutine"),
    ("FeatureFlags", "a coroutine"),
    ("RequireApproval(when=)", "a coroutine"),  # an awaitable of a verdict is one
    ("Authorize(permit(when=))", "a coroutine"),
    ("Authorize(permit(when_input=))", "a coroutine"),
    ("Cache(vary_by=)", "None"),  # a JSON value
    ("Consent", "an empty list"),  # the tool needs no consent
    ("Consent(text=)", "an empty text"),
    ("Quota(cost=)", "0"),  # the call is not counted
    ("Retry(on=)", "0"),  # seconds to wait
    ("Retry(wait=)", "0"),
    ("Cache(entry_tags=)", "an empty list"),
    *(("Cache(vary_by=)", fault) for fault in ("NaN", "0", "an empty text", "an empty list")),
    *(
        (f"{hook}(by={parts})", "an empty text")
        for hook in ("Quota", "Concurrency", "CircuitBreaker")
        for parts in ("", "[..., ...]")
    ),
}


async def outcome_of(
    hook: Hook, *, succeeds: bool = False
) -> tuple[str, list[BaseException], list[BaseException | None], int]:
    """Call a tool, which fails by default; return the outcome, suppressed faults, the error of the call, and how often it ran."""
    ran: list[int] = []
    faults: list[BaseException] = []
    errors: list[BaseException | None] = []

    @tool(effect="read")
    async def work(n: int) -> int:
        """Fail, or return 1."""
        ran.append(n)
        if succeeds:
            return n
        raise ConnectionError("the tool's own")

    class Looks(Hook):
        def will_finalize_invoke(self, ctx: InvokeContext) -> None:
            faults.extend(one.error for one in ctx.run.suppressed or ())
            errors.append(ctx.run.error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with Gate([work], [hook, Looks()]) as gate:
            result = await gate.call("work", {"n": 1}, user=USER)
        gc.collect()  # a coroutine that is left behind warns here
    return str(result.outcome), faults, errors, len(ran)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("setting", BEFORE)
async def test_no_call_passes_a_gate_whose_function_fails(setting: str, fault: str) -> None:
    """Contract C22, I3. The tool does not run, and no coroutine is left behind."""
    if (setting, fault) in MEANT:
        pytest.skip("a value that the setting takes")
    outcome, _, errors, ran = await outcome_of(BEFORE[setting](FAULTS[fault]))
    assert (outcome in {"denied", "error"}, ran) == (True, 0)
    assert errors[0] is not None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("setting", AFTER)
async def test_the_error_of_the_tool_stays_that_of_the_call(setting: str, fault: str) -> None:
    """The fault of the function is logged beside it, and the tool does not run again."""
    if (setting, fault) in MEANT:
        pytest.skip("a value that the setting takes")
    outcome, faults, errors, ran = await outcome_of(AFTER[setting](FAULTS[fault]))
    assert (outcome, ran) == ("error", 1)
    assert "the tool's own" in f"{errors[0]!r} {errors[0] and errors[0].__cause__!r}"
    assert [type(one) for one in faults] == [Fault if fault == "raises" else TypeError]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("setting", AFTER_SUCCESS)
async def test_a_call_whose_tool_has_succeeded_stays_a_success(setting: str, fault: str) -> None:
    """A fault of the tags of a cache entry ended the call as an error, after its effect."""
    outcome, faults, _, ran = await outcome_of(AFTER_SUCCESS[setting](FAULTS[fault]), succeeds=True)
    assert (outcome, ran) == ("success", 1)
    asked = setting in {"Cache(entry_tags=)", "Quota(refund_on=)"} and (setting, fault) not in MEANT
    assert [type(one) for one in faults] == [Fault if fault == "raises" else TypeError] * asked


@pytest.mark.parametrize("seconds", [float("inf"), -1.0, -1])
async def test_a_retry_waits_for_no_time_that_does_not_exist(seconds: float) -> None:
    """An endless wait held the call, and a negative one was none."""
    for hook in (Retry(3, on=lambda _: seconds), Retry(3, wait=lambda _: seconds)):
        _, faults, _, ran = await outcome_of(hook)
        assert (ran, [type(one) for one in faults]) == (1, [TypeError])


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_timeout_of_an_approval_hook_bounds_its_function(is_async: bool) -> None:
    """Contract I3: a policy that hangs denies; without it the call hung with the policy."""

    async def hangs(ctx: InvokeContext) -> bool:
        await asyncio.Event().wait()
        return False

    when: Any = hangs if is_async else partial(hangs)
    outcome, _, errors, ran = await outcome_of(RequireApproval(when=when, timeout=0.01))
    assert (outcome in {"denied", "error"}, ran) == (True, 0)
    assert "took longer than 0.01 s" in f"{errors[0]!r} {errors[0] and errors[0].__cause__!r}"


@pytest.mark.parametrize("verdict", [True, False])
async def test_control_a_verdict_in_time_counts(verdict: bool) -> None:
    """The same hook with a function that answers."""
    outcome, _, _, ran = await outcome_of(RequireApproval(when=lambda _: verdict, timeout=60))
    assert (outcome, ran) == (("suspended", 0) if verdict else ("error", 1))
