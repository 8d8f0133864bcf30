"""Settings of stock hooks: the main one first, one spelling for one notion, and the line to write for other spellings."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callgate.hooks
from callgate import Effects, Gate, InvokeContext, Stage, User, invoke_tool, tool
from callgate.errors import HookError
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
    Hook,
    HookOptions,
    Metrics,
    OutputPolicy,
    Quota,
    Redact,
    RequireApproval,
    Retry,
    Secrets,
    Timeout,
    Tracing,
    by_stage,
    from_env,
)
from callgate.hooks.stages import RELEASE_OF
from callgate.hooks.stock.options import OTHER_NAMES
from callgate.stores import MemoryStore
from tests.hooks.making import call, plan_of, record

STOCK: list[Any] = [
    value
    for value in (getattr(callgate.hooks, name) for name in vars(callgate.hooks)["__all__"])
    if inspect.isclass(value) and issubclass(value, Hook) and value is not Hook
]


def own_settings(hook: type[Hook]) -> dict[str, inspect.Parameter]:
    """The settings of a hook, without the options that every hook has."""
    parameters = dict(inspect.signature(hook).parameters)
    parameters.pop("options")
    return parameters


MAKERS: list[Any] = [
    lambda: Audit("log"),
    lambda: Authorize(roles={"manager"}),
    lambda: Cache(60),
    lambda: CircuitBreaker(5),
    lambda: Concurrency(5),
    lambda: Consent("mail:read"),
    lambda: Deadline(30),
    lambda: FeatureFlags({"callgate.search": True}),
    lambda: Metrics(None),
    lambda: OutputPolicy(10_000),
    lambda: Quota("100/minute"),
    lambda: Redact("password"),
    RequireApproval,
    lambda: Retry(3),
    lambda: Secrets({"billing_key": from_env("BILLING_KEY")}),
    lambda: Timeout(5),
    lambda: Tracing(None),
]
"""Makes each stock hook with its main setting."""


@pytest.mark.parametrize("make", MAKERS)
def test_the_main_setting_comes_first_by_position(make: Any) -> None:
    assert isinstance(make(), Hook)


def steps_of(*hooks: Any) -> list[tuple[str, str]]:
    """The stages and the hooks of a plan, in running order."""
    made = plan_of(record(), *hooks, provide={"billing_key": "secret"})
    return [(str(step.stage), step.name) for _, _, step in made.steps()]


@pytest.mark.parametrize("make", [one for one in MAKERS if one is not RequireApproval])
def test_by_stage_lists_a_hook_under_all_of_its_stages(make: Any) -> None:
    hook = make()
    assert steps_of(by_stage(hook)) == steps_of(hook)


@pytest.mark.parametrize("make", [one for one in MAKERS if one is not RequireApproval])
def test_a_stock_hook_under_a_part_of_its_stages_is_refused(make: Any) -> None:
    hook = make()
    spread = by_stage(hook)
    acquired = {RELEASE_OF[stage] for stage in spread if stage in RELEASE_OF}
    for stage in spread:
        part = {one: hooks for one, hooks in spread.items() if one is not stage}
        if stage in acquired:  # its acquire stage enrolls it
            assert steps_of(part) == steps_of(hook)
        elif part:
            with pytest.raises(HookError, match=f"{stage}.*by_stage"):
                steps_of(part)


async def test_a_cache_under_one_stage_alone_is_refused() -> None:
    with pytest.raises(HookError, match=r"not listed under .*will_write_cache.*write by_stage\(cache\)"):
        await invoke_tool(record(), {"n": 1}, global_hooks_by_stage={Stage.WILL_READ_CACHE: [Cache(60)]})


async def test_a_cache_that_by_stage_spreads_answers_the_second_call() -> None:
    ran: list[int] = []

    async def doubles(n: int) -> int:
        ran.append(n)
        return 2 * n

    tool = record(doubles)
    hooks, ann = by_stage(Cache(60)), User("ann")
    for _ in range(2):
        assert await invoke_tool(tool, {"n": 1}, user=ann, global_hooks_by_stage=hooks) == 2
    assert ran == [1]


def test_by_stage_refuses_a_hook_without_a_stage() -> None:
    with pytest.raises(HookError, match=r"Gate\(hooks=\[RequireApproval"):
        by_stage(RequireApproval())


async def test_a_hook_under_several_stages_asks_for_one_approval() -> None:
    asked: list[str] = []

    class Asks(Hook):
        def will_authorize(self, ctx: InvokeContext) -> None: ...

        def will_audit(self, ctx: InvokeContext) -> None: ...

        def approval_for(self, ctx: InvokeContext) -> None:
            asked.append(ctx.tool_id)

    assert (await call(record(), by_stage(Asks()))).ok
    assert asked == ["double"]


@pytest.mark.parametrize("hook", STOCK)
def test_every_stock_hook_takes_its_main_setting_by_position_and_all_options(hook: Any) -> None:
    first, *others = own_settings(hook).values()
    assert first.kind in (first.POSITIONAL_OR_KEYWORD, first.VAR_POSITIONAL)
    assert [one.name for one in others if one.kind is not one.KEYWORD_ONLY] == []
    assert not set(own_settings(hook)) & set(HookOptions.__annotations__), "a setting hides an option of every hook"


def test_one_notion_has_one_spelling() -> None:
    """A name that the table calls another spelling of a setting is no setting of that hook."""
    wrong = [
        (hook.__name__, setting, other)
        for hook in STOCK
        for setting in own_settings(hook)
        for other in OTHER_NAMES.get(setting, ())
        if other in own_settings(hook)
    ]
    assert wrong == []


LOOSE: dict[str, Any] = {name: getattr(callgate.hooks, name) for name in vars(callgate.hooks)["__all__"]}
REFUSED: list[tuple[Any, str]] = [
    (lambda: LOOSE["Concurrency"](places=5), "Concurrency has no setting 'places'; write Concurrency(5)"),
    (
        lambda: LOOSE["Concurrency"](5, queue=1, wait=2.5),
        "Concurrency has no setting 'wait'; write queue_timeout=2.5",
    ),
    (lambda: LOOSE["Concurrency"](5, sie=1), "Concurrency has no setting 'sie'; known: "),
    (LOOSE["Concurrency"], "Concurrency needs its limit as the first argument"),
    (lambda: LOOSE["Retry"](retries=3), "Retry has no setting 'retries'; write Retry(3)"),
    (lambda: LOOSE["Retry"](attempts=3), "Retry has no setting 'attempts'; write Retry(3)"),
    (lambda: LOOSE["Retry"](patience=3), "Retry has no setting 'patience'; write max_retry_after=3"),
    (lambda: LOOSE["Timeout"](timeout=5), "Timeout takes its seconds first; write Timeout(5)"),
    (lambda: LOOSE["Deadline"](limit=5), "Deadline has no setting 'limit'; write Deadline(5)"),
    (lambda: LOOSE["Cache"](expire=5), "Cache has no setting 'expire'; write Cache(5)"),
    (lambda: LOOSE["Cache"](timeout=5), "Cache takes its ttl first; write Cache(5)"),
    (lambda: LOOSE["Quota"](limits="5/minute"), "Quota has no setting 'limits'; write Quota('5/minute')"),
    (lambda: LOOSE["Quota"]("5/minute", key="user"), "Quota has no setting 'key'; write by='user'"),
    (lambda: LOOSE["Quota"]("5/minute", prioriti=1), "Quota has no setting 'prioriti'; did you mean 'priority'?"),
    (lambda: LOOSE["Redact"](keys=["a", "b"]), "Redact has no setting 'keys'; write Redact('a', 'b')"),
    (lambda: LOOSE["Redact"](names=["a"]), "Redact has no setting 'names'; write Redact('a')"),
    (lambda: LOOSE["CircuitBreaker"](fail_max=3), "CircuitBreaker has no setting 'fail_max'; write CircuitBreaker(3)"),
    (
        lambda: LOOSE["CircuitBreaker"](recovery_timeout=3),
        "CircuitBreaker has no setting 'recovery_timeout'; write open_for=3",
    ),
    (lambda: LOOSE["CircuitBreaker"](half_open=3), "CircuitBreaker has no setting 'half_open'; write max_probes=3"),
    (lambda: LOOSE["Authorize"](time_limit=3), "Authorize has no setting 'time_limit'; write decider_timeout=3"),
    (lambda: LOOSE["Audit"](write_limit=3), "Audit has no setting 'write_limit'; write write_timeout=3"),
    (lambda: LOOSE["FeatureFlags"](client=7), "FeatureFlags has no setting 'client'; write FeatureFlags(7)"),
    (lambda: LOOSE["FeatureFlags"]({}, missing="on"), "FeatureFlags has no setting 'missing'; write default='on'"),
    (lambda: LOOSE["Consent"](wait=3), "Consent has no setting 'wait'; write expires=3"),
    (lambda: LOOSE["OutputPolicy"](max_size=3), "OutputPolicy has no setting 'max_size'; write OutputPolicy(3)"),
    (LOOSE["Secrets"], "Secrets needs its sources as the first argument"),
    (lambda: LOOSE["Metrics"](colour="red"), "Metrics has no setting 'colour'; known: "),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_another_spelling_is_refused_with_the_line_to_write(make: Any, says: str) -> None:
    """Contract C33."""
    with pytest.raises(TypeError) as refused:
        make()
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize("hook", STOCK)
def test_no_stock_hook_takes_a_setting_that_it_does_not_know(hook: Any) -> None:
    """Contract C33."""
    with pytest.raises(TypeError, match=f"^{hook.__name__} has no setting 'colour'"):
        hook(colour="red")


@pytest.mark.parametrize("make", [Timeout, Deadline, Cache, lambda span: Audit(write_timeout=span)])
def test_times_are_seconds(make: Any) -> None:
    with pytest.raises(HookError, match=r"times are seconds, so write \w+=90"):
        make(timedelta(seconds=90))


ADDRESS = "sqlite:///callgate.db"
OTHER_KINDS: dict[str, tuple[Any, Any, Any]] = {
    "Cache shared": (lambda value: Cache(60, shared=value), "false", False),
    "Cache force": (lambda value: Cache(60, force=value), "no", False),
    "Cache store": (lambda value: Cache(60, store=value), ADDRESS, MemoryStore()),
    "Concurrency shared": (lambda value: Concurrency(1, shared=value), "no", False),
    "Concurrency by": (lambda value: Concurrency(1, by=value), {"user", "tool"}, ("user", "tool")),
    "CircuitBreaker shared": (lambda value: CircuitBreaker(shared=value), "no", False),
    "CircuitBreaker store": (lambda value: CircuitBreaker(store=value), ADDRESS, MemoryStore()),
    "Quota by": (lambda value: Quota("1/minute", by=value), {"user", "tool"}, ["user", "tool"]),
    "Quota name": (lambda value: Quota("1/minute", name=value), 5, "five"),
    "Quota store": (lambda value: Quota("1/minute", store=value), ADDRESS, MemoryStore()),
    "Audit arguments": (lambda value: Audit("log", arguments=value), "false", False),
    "Audit hydrations": (lambda value: Audit("log", hydrations=value), "no", False),
    "Audit secret_keys": (lambda value: Audit("log", secret_keys=value), "password", ["password"]),
    "Audit store": (lambda value: Audit(store=value), ADDRESS, MemoryStore()),
    "Consent store": (lambda value: Consent(store=value), ADDRESS, MemoryStore()),
    "Retry safe": (lambda value: Retry(safe=value), [ConnectionError], (ConnectionError,)),
    "Retry safe, a function": (lambda value: Retry(safe=value), lambda error: True, ConnectionError),
    "Secrets source": (lambda value: Secrets({"key": value}), lambda: "secret", lambda ctx: "secret"),
    "Authorize public": (lambda value: Authorize(roles={"clerk"}, public=value), 5, "No."),
}
"""A setting of another kind, and one of its kind. Read as a bool, the text "false" is true."""


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_a_setting_of_another_kind_is_refused(name: str) -> None:
    """Contract C33: ``Cache(shared="false")`` gave a user the output of another."""
    make, wrong, right = OTHER_KINDS[name]
    with pytest.raises(HookError, match=name.split(",", maxsplit=1)[0].replace(" ", ": ")):
        make(wrong)
    assert isinstance(make(right), Hook)


@pytest.mark.parametrize(
    "value", [ADDRESS, Path("callgate.db"), 5, {}, object(), MemoryStore], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("hook", [name for name in OTHER_KINDS if name.endswith(" store")])
def test_what_is_no_store_is_refused_as_one(hook: str, value: Any) -> None:
    """Contract C33. A store of the application may lack the parts that a hook never uses."""
    make, _, _ = OTHER_KINDS[hook]
    with pytest.raises(HookError, match="store is of type"):
        make(value)
    assert isinstance(make(SimpleNamespace(cache=MemoryStore().cache)), Hook)


def test_a_subclass_may_have_a_constructor_of_its_own() -> None:
    class Short(Cache):
        def __init__(self) -> None:
            super().__init__(5, shared=True)

    assert Short().ttl == 5


async def test_options_of_every_hook_reach_stock_hooks() -> None:
    """The tools that a cache is limited to, given where the hook is made."""
    runs: list[str] = []

    @tool(effect="read")
    async def price(article: str) -> int:
        """Return a price."""
        runs.append("price")
        return 1

    @tool(effect="read")
    async def stock(article: str) -> int:
        """Return a stock level."""
        runs.append("stock")
        return 1

    async with Gate(
        [price, stock], [Cache(60, tools={"price"})], store=MemoryStore(), effects=Effects(durable=False)
    ) as gate:
        for name in ("price", "price", "stock", "stock"):
            await gate.invoke(name, {"article": "A-1"}, user=User("ann"))
    assert runs == ["price", "stock", "stock"]


def test_the_options_that_limit_a_hook_are_part_of_its_name_in_a_store() -> None:
    plain, limited = Quota("5/minute"), Quota("5/minute", effects={"read"})
    context: Any = SimpleNamespace(user=User("ann"))
    context.run = SimpleNamespace(plan=SimpleNamespace(definition=SimpleNamespace(name="price")))
    assert plain._key_of(context) != limited._key_of(context)


async def test_authorize_by_role() -> None:
    @tool(effect="irreversible", key=("order",))
    async def refund(order: str) -> str:
        """Refund an order."""
        return "done"

    async with Gate([refund], [Authorize(roles={"manager"})], effects=Effects(durable=False)) as gate:
        assert await gate.invoke("refund", {"order": "A-1"}, user=User("max", roles={"manager"})) == "done"
        with pytest.raises(callgate.Denied):
            await gate.invoke("refund", {"order": "A-1"}, user=User("ann", roles={"clerk"}))


def test_redact_masks_names_at_any_depth() -> None:
    value = {"password": "a", "users": [{"Pass-Word": "b", "name": "Ann"}], "deep": {"er": {"PASSWORD": {"x": 1}}}}
    assert Redact("password").masked(value) == {
        "password": "***",
        "users": [{"Pass-Word": "***", "name": "Ann"}],
        "deep": {"er": {"PASSWORD": "***"}},
    }


def test_backoff_has_a_maximum() -> None:
    assert Backoff(initial=1, maximum=2, random=lambda: 1.0)(10) == 2
