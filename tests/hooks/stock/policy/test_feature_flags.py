"""``FeatureFlags``: tools are switched off and on while the gate is open, and a provider that is away switches them off."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterator
from typing import Any

import pytest

from callgate import Gate, Stage, ToolCall, ToolDefinition, ToolResult, User, tool
from callgate.errors import HookError
from callgate.hooks.stock.policy.feature_flags import FeatureFlags
from tests.harness.steploop import StepLoop, cost_of, on_virtual_time
from tests.hooks.making import Watch

ANN, EVE, NOBODY = User("ann", tenant="acme", roles={"clerk"}), User("eve", tenant="globex"), User("solo")
RAN: list[str] = []


@tool(effect="read")
async def search(text: str = "x") -> str:
    """Search."""
    RAN.append("search")
    return "found"


@tool(effect="read")
async def export() -> str:
    """Export."""
    RAN.append("export")
    return "exported"


async def call(gate: Gate, user: User = ANN, name: str = "search") -> ToolResult:
    RAN.clear()
    result = await gate.call(ToolCall(id="c", name=name, arguments={}), user=user)
    assert ([name] if result.ok else []) == RAN
    return result


async def once(hook: FeatureFlags, user: User = ANN, name: str = "search") -> ToolResult:
    async with Gate([search, export], [hook]) as gate:
        return await call(gate, user, name)


# ---------------------------------------------------------------------- a source of one's own


async def test_a_tool_is_switched_off_and_on_while_the_gate_is_open() -> None:
    """Issue 4: no new start, no new plan."""
    flags = {"callgate.search": True, "callgate.export": True}
    async with Gate([search, export], [FeatureFlags(flags)]) as gate:
        assert (await call(gate)).ok
        flags["callgate.search"] = False
        off = await call(gate)
        assert off.error is not None
        assert (off.outcome, off.error.code) == ("denied", "switched_off")
        assert off.error.public == "This tool is switched off."
        assert (await call(gate, name="export")).ok
        flags["callgate.search"] = True
        assert (await call(gate)).ok


async def test_a_kill_switch_is_for_one_tool_of_one_tenant() -> None:
    """Contract I8."""
    flags: dict[str, bool] = {}
    hook = FeatureFlags(flags, keys=["kill.{tool}", "kill.{tenant}.{tool}", "kill.{tenant}"], default=True)
    async with Gate([search, export], [hook]) as gate:

        async def on() -> list[str]:
            users = (ANN, EVE, NOBODY)
            return [f"{u.id} {t}" for u in users for t in ("search", "export") if (await call(gate, u, t)).ok]

        everybody = await on()
        assert len(everybody) == 6
        flags["kill.acme.search"] = False
        assert await on() == [one for one in everybody if one != "ann search"]
        flags["kill.export"] = False
        assert await on() == ["eve search", "solo search"]
        flags.clear()
        flags["kill.globex"] = False
        assert await on() == [one for one in everybody if not one.startswith("eve")]


async def test_a_flag_that_does_not_exist_is_off_unless_flags_are_kill_switches() -> None:
    """Fail closed."""
    assert not (await once(FeatureFlags({}))).ok
    assert (await once(FeatureFlags({}, default=True))).ok
    tenants = FeatureFlags({"t.acme.search": True, "t..search": True}, keys="t.{tenant}.{tool}")
    assert (await once(tenants)).ok
    assert not (await once(tenants, NOBODY)).ok


async def test_what_a_tenant_is_called_is_no_part_of_the_pattern() -> None:
    """Contract I8."""
    flags = {"t.{tool}.search": False, "t.search.search": True, "t.a.b.search": True}
    hook = FeatureFlags(flags, keys="t.{tenant}.{tool}")
    assert not (await once(hook, User("u", tenant="{tool}"))).ok
    assert (await once(hook, User("u", tenant="search"))).ok


async def test_a_source_may_be_a_function_plain_or_asynchronous() -> None:
    """Issue 4."""
    seen: list[Any] = []

    def plain(key: str, user: User, definition: ToolDefinition) -> bool:
        seen.append((key, user.id, definition.name))
        return user.tenant == "acme"

    async def waiting(key: str, user: User, definition: ToolDefinition) -> bool | None:
        await asyncio.sleep(0)
        return True if user.tenant == "acme" else None

    for source in (plain, waiting):
        assert (await once(FeatureFlags(source))).ok
        assert not (await once(FeatureFlags(source), EVE)).ok
    assert seen == [("callgate.search", "ann", "search"), ("callgate.search", "eve", "search")]


@pytest.mark.parametrize("value", ["false", 1, 0, [], {}])
@pytest.mark.parametrize("choice", [False, True])
async def test_a_value_that_is_no_boolean_denies_whatever_was_chosen(value: Any, choice: Any) -> None:
    """Fail closed: "false" is no yes."""
    hook = FeatureFlags({"callgate.search": value}, default=choice, on_provider_failure="allow" if choice else "deny")
    result = await once(hook)
    assert result.error is not None
    assert result.error.code == "flag_unreadable"


# ---------------------------------------------------------------------- out of reach


async def _away(*_: Any) -> bool:
    raise ConnectionError("SECRET at 10.0.0.1")


async def _hangs(*_: Any) -> bool:
    await asyncio.Event().wait()
    return True


async def _swallows(*_: Any) -> bool:
    try:
        await asyncio.sleep(10_000)
    except asyncio.CancelledError:
        pass
    return True


@pytest.mark.parametrize("source", [_away, _hangs, _swallows], ids=lambda source: source.__name__)
def test_a_provider_out_of_reach_switches_off_unless_it_was_chosen_otherwise(source: Any) -> None:
    """Contract I9: closed by default; open by choice, and then it is recorded."""

    @on_virtual_time
    async def both(loop: StepLoop) -> None:
        began = loop.time()
        closed = await once(FeatureFlags(source, default=True))
        assert closed.error is not None
        assert (closed.outcome, closed.error.code) == ("denied", "flag_unreadable")
        assert "SECRET" not in str(closed.to_status())
        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        async with Gate([search], [FeatureFlags(source, on_provider_failure="allow"), watch.hook]) as gate:
            assert (await call(gate)).ok
        assert len(watch.ctx.suppressed) == 1
        assert loop.time() - began < 5

    both()


async def test_in_shadow_mode_it_only_records() -> None:
    """Contract 92."""
    sources: list[Any] = [{}, _away]
    for source in sources:
        watch = Watch(Stage.WILL_FINALIZE_INVOKE)
        hook = FeatureFlags(source, mode="shadow")
        async with Gate([search], [hook, watch.hook]) as gate:
            assert (await call(gate)).ok
        assert len(watch.ctx.suppressed) == 1


def test_a_mapping_costs_the_loop_nothing() -> None:
    """Design 8: no task, nothing suspends."""

    def scenario(*hooks: Any) -> Any:
        async def run() -> None:
            async with Gate([search], hooks) as gate:
                await gate.invoke("search", {}, user=ANN)

        return run

    assert cost_of(scenario(FeatureFlags({"callgate.search": True}))) == cost_of(scenario())


# ---------------------------------------------------------------------- OpenFeature


@pytest.fixture
def openfeature() -> Iterator[Any]:
    pytest.importorskip("openfeature", reason="NO OPENFEATURE: install callgate[flags]; its tests are skipped")
    from openfeature import api

    api.clear_providers()
    yield api
    api.clear_providers()


def _flag(on: bool, **more: Any) -> Any:
    from openfeature.provider.in_memory_provider import InMemoryFlag

    return InMemoryFlag("on" if on else "off", {"on": True, "off": False}, **more)


def _provider(flags: dict[str, Any]) -> Any:
    from openfeature.provider.in_memory_provider import InMemoryProvider

    return InMemoryProvider(flags)


async def test_an_openfeature_client_decides_and_a_new_provider_takes_effect_at_once(openfeature: Any) -> None:
    """Issue 4: a kill switch without redeploy."""
    openfeature.set_provider(_provider({"callgate.search": _flag(True)}))
    async with Gate([search], [FeatureFlags(openfeature.get_client())]) as gate:
        assert (await call(gate)).ok
        openfeature.set_provider(_provider({"callgate.search": _flag(False)}))
        assert not (await call(gate)).ok
        openfeature.set_provider(_provider({"callgate.search": _flag(True)}))
        assert (await call(gate)).ok


async def test_user_tenant_and_tool_are_the_context_of_an_evaluation(openfeature: Any) -> None:
    """Issue 4: a rule of the provider may turn on one tool for one tenant."""
    from openfeature.flag_evaluation import FlagResolutionDetails

    seen: list[Any] = []

    def evaluate(flag: Any, context: Any) -> Any:
        seen.append((context.targeting_key, dict(context.attributes)))
        return FlagResolutionDetails(value=context.attributes.get("tenant") == "acme")

    openfeature.set_provider(_provider({"callgate.search": _flag(True, context_evaluator=evaluate)}))
    assert (await once(FeatureFlags())).ok  # the default client
    assert not (await once(FeatureFlags(), EVE)).ok
    assert not (await once(FeatureFlags(), NOBODY)).ok
    expected = {"tool": "search", "version": "1", "roles": ["clerk"], "scopes": [], "tenant": "acme", "effect": "read"}
    assert seen[0] == ("ann", expected)
    assert "tenant" not in seen[2][1]


async def test_what_openfeature_cannot_answer_is_missing_unreadable_or_out_of_reach(openfeature: Any) -> None:
    """Fail closed: the client itself raises nothing and gives the default, which must not pass for an answer."""

    def boom(flag: Any, context: Any) -> Any:
        raise ConnectionError("SECRET")

    from openfeature.provider.in_memory_provider import InMemoryFlag

    flags = {"text": InMemoryFlag("a", {"a": "yes"}), "away": _flag(True, context_evaluator=boom)}
    openfeature.set_provider(_provider(flags))

    async def code(key: str, **options: Any) -> str:
        result = await once(FeatureFlags(openfeature.get_client(), keys=key, **options))
        return "on" if result.error is None else result.error.code

    assert await code("unknown") == "switched_off"
    assert await code("unknown", default=True) == "on"
    assert await code("away", default=True) == "flag_unreadable"
    assert await code("away", on_provider_failure="allow") == "on"
    assert await code("text", on_provider_failure="allow", default=True) == "flag_unreadable"
    openfeature.clear_providers()
    assert await code("text", default=True) == "flag_unreadable"  # nobody set a provider
    assert await code("text", on_provider_failure="allow") == "on"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract C33."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("openfeature"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(HookError, match=r"callgate\[flags\]"):
        FeatureFlags()
    FeatureFlags({})


@pytest.mark.parametrize(
    "options",
    [
        {"source": object()},
        {"source": 7},
        {"source": {}, "keys": ()},
        {"source": {}, "keys": ""},
        {"source": {}, "keys": "a.{user}"},
        {"source": {}, "keys": "a.{tool!r}"},
        {"source": {}, "keys": "a.{tool"},
        {"source": {}, "keys": "a.{}"},
        {"source": {}, "default": "maybe"},
        {"source": {}, "on_provider_failure": True},
        {"source": {}, "flag_timeout": 0},
    ],
)
def test_what_means_nothing_is_refused(options: Any) -> None:
    """Contract C33."""
    with pytest.raises(HookError):
        FeatureFlags(**options)
