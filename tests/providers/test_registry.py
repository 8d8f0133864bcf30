"""The three scopes: who is looked at first, who may bind where, and who shares what with whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from dependency_injector import containers, providers

from callgate import Gate, Hook, InvokeContext, Outcome, ProviderRegistry, ToolCall, ToolContext, User, tool
from callgate.errors import ProviderError, ProviderMissing
from callgate.providers.registry import MISSING, as_pairs
from callgate.runtime.lifespan.factories import Factories
from tests.runtime.gate.making import USER, call, gate_of, made


class Db:
    """A token."""


Look = Callable[[InvokeContext], Any]


class Binding(Hook):
    """Binds or returns given providers in ``will_bind_providers``."""

    def __init__(self, act: Look) -> None:
        self.act = act

    def will_bind_providers(self, ctx: InvokeContext) -> Any:
        return self.act(ctx)


def looking(look: Look, log: list[Any]) -> Any:
    """A tool that notes what it finds."""

    async def work(n: int, ctx: ToolContext) -> int:
        view: Any = ctx  # it looks things up as a hook does
        log.append(look(view))
        return n

    return made(work, context_parameter="ctx")


async def look(look: Look, *hooks: Any, provide: Mapping[Any, Any] | None = None, **options: Any) -> list[Any]:
    """Collects the instances of each call."""
    log: list[Any] = []
    async with gate_of([looking(look, log)], *hooks, provide=provide) as gate:
        result = await gate.call(call(), user=USER, **options)
        assert result.ok, result
    return log


# ---------------------------------------------------------------------- order and scopes


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        (("request", "session", "global"), "request"),
        (("session", "global"), "session"),
        (("request", "global"), "request"),
        (("request", "session"), "request"),
        (("global",), "global"),
    ],
)
async def test_request_comes_before_session_before_global(scopes: tuple[str, ...], expected: str) -> None:
    """Contract 84, 85."""

    def bind(ctx: InvokeContext) -> None:
        for scope in scopes:
            if scope != "global":
                ctx.bind_provider(Db, scope, scope)  # type: ignore[arg-type]

    provided = {Db: lambda: "global"} if "global" in scopes else None
    assert await look(lambda ctx: ctx.get(Db), Binding(bind), provide=provided, session_id="s") == [expected]


def test_looking_up_goes_through_the_maps_in_order() -> None:
    """Contract 85, C25."""
    registry = ProviderRegistry()
    registry.register_singletons({Db: "global"})
    recipe, nothing = registry.recipes.of(Db), registry.recipes.of("nothing")
    scope = registry.request("s", "owner")
    assert scope.peek(recipe) == "global"
    assert scope.peek(nothing) is MISSING
    scope.session(True).bindings[Db] = None
    assert scope.peek(recipe) is None
    scope.bindings[Db] = "request"
    assert scope.peek(recipe) == "request"


async def test_get_raises_for_what_is_missing_and_names_it_and_try_get_gives_none() -> None:
    """Contract 85, C25."""

    def both(ctx: InvokeContext) -> Any:
        with pytest.raises(ProviderMissing, match="Db"):
            ctx.get(Db)
        with pytest.raises(LookupError):
            ctx.get("no such token")
        return ctx.try_get(Db), ctx.try_get(Db, "instead")

    assert await look(both) == [(None, "instead")]


@pytest.mark.parametrize("scope", ["request", "session", "global"])
async def test_none_is_a_legal_instance(scope: str) -> None:
    """Contract C25."""

    def bind(ctx: InvokeContext) -> None:
        if scope != "global":
            ctx.bind_provider(Db, None, scope)  # type: ignore[arg-type]

    found = await look(
        lambda ctx: (ctx.get(Db), ctx.try_get(Db, "instead")),
        Binding(bind),
        provide={Db: None} if scope == "global" else None,
        session_id="s",
    )
    assert found == [(None, None)]


class Broken(containers.DeclarativeContainer):
    """Its one provider fails."""

    db = providers.Factory(lambda: 1 // 0)


async def test_an_error_of_a_lazy_factory_is_not_taken_for_a_missing_provider() -> None:
    """Contract C25."""

    def both(ctx: InvokeContext) -> None:
        for ask in (ctx.get, ctx.try_get):
            with pytest.raises(ZeroDivisionError):
                ask(Broken.db)

    log: list[Any] = []
    async with Gate([looking(both, log)], container=Broken(), allow_unguarded=True) as gate:
        assert (await gate.call(call(), user=USER)).ok
    assert log == [None]


async def test_the_global_scope_cannot_be_changed_by_an_invocation() -> None:
    """Contract 86."""
    refused: list[str] = []

    def bind(ctx: InvokeContext) -> None:
        for scope in ("global", "galaxy"):
            with pytest.raises(ProviderError) as caught:
                ctx.bind_provider(Db, "mine", scope)  # type: ignore[arg-type]
            refused.append(str(caught.value))
        singletons: Any = ctx.run.plan.host.registry.get_all_singletons()
        with pytest.raises(TypeError):
            singletons[Db] = "mine"

    assert await look(lambda ctx: ctx.get(Db), Binding(bind), provide={Db: lambda: "global"}) == ["global"]
    assert "Gate(provide=" in refused[0]
    assert "request, session" in refused[1]


def test_a_token_has_one_global_provider() -> None:
    """Contract 84."""
    registry = ProviderRegistry()
    registry.register_singletons({Db: 1})
    with pytest.raises(ProviderError, match="Db"):
        registry.register_singletons({Db: 2})
    with pytest.raises(ProviderError, match="Db"):
        registry.provide({Db: 2})
    assert registry.get_all_singletons() == {Db: 1}


async def test_what_a_factory_will_make_is_known_and_not_there_yet() -> None:
    """Contract 84, C25."""
    registry = ProviderRegistry()
    registry.provide({Db: lambda: None})
    made = Factories(registry)
    assert Db in registry
    assert registry.find_global(Db) is MISSING
    await made.open()
    assert registry.find_global(Db) is None
    await made.close()
    assert registry.find_global(Db) is MISSING
    assert Db in registry


async def test_a_request_provider_is_gone_with_its_invocation() -> None:
    """Contract 84, I8."""
    log: list[Any] = []

    def bind_once(ctx: InvokeContext) -> None:
        if not log:
            ctx.bind_provider(Db, "first")

    async with gate_of([looking(lambda ctx: ctx.try_get(Db), log)], Binding(bind_once)) as gate:
        for _ in range(2):
            await gate.call(call(), user=USER, session_id="s")
    assert log == ["first", None]


# ---------------------------------------------------------------------- what will_bind_providers may return


@pytest.mark.parametrize(
    "returned",
    [{Db: 1, "name": 2}, [(Db, 1), ("name", 2)], ((Db, 1), ("name", 2)), {Db: 1, "name": 2}.items()],
    ids=range(4),
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_map_or_pairs_returned_are_bound_to_the_request(returned: Any, is_async: bool) -> None:
    """Contract 89, C24."""

    class Async(Hook):
        async def will_bind_providers(self, ctx: InvokeContext) -> Any:
            return returned

    hook = Async() if is_async else Binding(lambda ctx: returned)
    assert await look(lambda ctx: (ctx.get(Db), ctx.get("name")), hook) == [(1, 2)]


async def test_an_iterator_of_pairs_returned_is_bound_like_a_list() -> None:
    """Contract 89."""
    assert await look(lambda ctx: ctx.get(Db), Binding(lambda ctx: ((token, 1) for token in [Db]))) == [1]


@pytest.mark.parametrize("returned", [7, "text", [Db], object()], ids=range(4))
async def test_anything_else_returned_fails_the_call(returned: Any) -> None:
    """Contract 89."""
    log: list[Any] = []
    async with gate_of([looking(lambda ctx: None, log)], Binding(lambda ctx: returned)) as gate:
        assert (await gate.call(call(), user=USER)).outcome is Outcome.ERROR
    assert not log
    with pytest.raises(TypeError, match="will_bind_providers returned"):
        as_pairs(returned)


async def test_the_lower_priority_binds_last_and_wins() -> None:
    """Contract 89, C24."""
    first, second = Binding(lambda ctx: {Db: "high"}), Binding(lambda ctx: {Db: "low"})
    first.priority, second.priority = 10, 1
    assert await look(lambda ctx: ctx.get(Db), second, first) == ["low"]


# ---------------------------------------------------------------------- sessions


async def test_a_session_shares_its_map_and_no_other_session_sees_it() -> None:
    """Contract 84, 86, C26, I8."""
    log: list[Any] = []

    def bind(ctx: InvokeContext) -> None:
        if ctx.try_get(Db) is None:
            ctx.bind_provider(Db, f"of {ctx.session_id}", "session")

    async with gate_of([looking(lambda ctx: ctx.get(Db), log)], Binding(bind)) as gate:
        for session in ("a", "b", "a"):
            await gate.call(call(), user=USER, session_id=session)
        shared = gate.providers.session_map("a")
        assert shared == {Db: "of a"}
        gate.providers.end_session("a")
        assert gate.providers.session_map("a") == {}
        assert gate.providers.session_map("b") == {Db: "of b"}
    assert log == ["of a", "of b", "of a"]


def test_session_providers_can_be_registered_from_outside() -> None:
    """Contract 84."""
    registry = ProviderRegistry()
    registry.register_session_providers("s", {Db: 1})
    registry.session_map("s")["more"] = 2
    assert registry.session_map("s") == {Db: 1, "more": 2}
    registry.end_session("never began")


@pytest.mark.parametrize("anonymous", [None, ""])
def test_without_a_session_id_every_map_is_a_new_one(anonymous: str | None) -> None:
    """Contract C26, I8."""
    registry = ProviderRegistry()
    registry.session_map(anonymous)[Db] = "secret"
    assert registry.session_map(anonymous) == {}


@pytest.mark.parametrize("anonymous", [None, ""])
async def test_a_thousand_anonymous_calls_at_once_share_nothing(anonymous: str | None) -> None:
    """Contract C26, I8."""
    log: list[Any] = []
    counter = iter(range(10_000))

    def bind(ctx: InvokeContext) -> None:
        log.append(ctx.try_get(Db))
        ctx.bind_provider(Db, next(counter), "session")

    found: list[Any] = []
    async with gate_of([looking(lambda ctx: ctx.get(Db), found)], Binding(bind)) as gate:
        calls = [call({"n": i}, id=str(i)) for i in range(1000)]
        results = await gate.call_many(calls, at_once=1000, session_id=anonymous)
        assert not gate.providers.sessions
    assert all(result.ok for result in results)
    assert log == [None] * 1000
    assert sorted(found) == list(range(1000))


# ---------------------------------------------------------------------- nested calls


async def test_a_nested_call_shares_the_request_providers_both_ways() -> None:
    """Contract 84, 85."""
    seen: list[Any] = []

    async def inner(n: int, ctx: Any) -> int:
        seen.append(ctx.get(Db))
        return n

    async def outer(n: int, ctx: Any) -> int:
        return int(await ctx.call("inner", {"n": n}))

    tools = [made(inner, "inner", context_parameter="ctx"), made(outer, "work", context_parameter="ctx")]

    class Once(Hook):
        tools = ("work",)

        def will_bind_providers(self, ctx: InvokeContext) -> None:
            ctx.bind_provider(Db, "of the outer request")

    async with gate_of(tools, Once()) as gate:
        assert (await gate.call(call(), user=USER)).output == 2
    assert seen == ["of the outer request"]


async def test_binding_is_refused_where_it_would_come_too_late() -> None:
    """Contract 86."""
    log: list[Any] = []

    class Late(Hook):
        def will_redact_output(self, ctx: InvokeContext) -> None:
            ctx.bind_provider(Db, 1)

    async with gate_of([looking(lambda ctx: None, log)], Late()) as gate:
        assert (await gate.call(call(), user=USER)).outcome is Outcome.ERROR


def test_tokens_made_up_at_each_call_are_not_remembered() -> None:
    """Contract C26."""
    registry = ProviderRegistry(Broken())
    for i in range(100):
        assert registry.find_global(f"user-{i}") is MISSING
    assert not registry.recipes._by_token
    assert not registry.recipes._made


async def test_a_session_id_opens_nothing_for_another_user() -> None:
    """Contract C26, I8."""

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        return str(ctx.try_get("secret"))

    class Binds(Hook):
        def will_bind_providers(self, ctx: InvokeContext) -> None:
            if ctx.user.id == "alice":
                ctx.bind_provider("secret", "hers", scope="session")

    async with Gate([look], [Binds()]) as gate:
        assert await gate.invoke("look", user=User("alice"), session_id="s") == "hers"
        for other in (User("bob"), User("alice", tenant="elsewhere")):
            result = await gate.call(ToolCall(id="c", name="look"), user=other, session_id="s")
            assert not result.ok
            assert "hers" not in repr(result)
