"""``ctx.providers``: the providers of a call as a read-only mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from dependency_injector import containers, providers

from callgate import InvokeContext, ProviderRegistry, Stage, invoke_tool
from callgate.errors import ProviderError, ProviderMissing, StageError
from callgate.hooks import context
from callgate.hooks.state import frozen_views
from tests.hooks.making import Act, at, call, record

MADE: list[str] = []


class Mail:
    def __init__(self) -> None:
        MADE.append("mail")


async def connect() -> str:
    return "connected"


def registry() -> ProviderRegistry:
    made = ProviderRegistry()
    made.register_singletons({"all": "global", "two": "global", "one": "global", "none": None})
    made.provide({Mail: Mail, "later": connect})
    made.register_session_providers("s", {"all": "session", "two": "session", "own": "session"})
    return made


async def through(act: Act, *, stage: Stage = Stage.WILL_BIND_PROVIDERS, **options: Any) -> Any:
    """Run an act in a stage of a call; what it returned."""
    answers: list[Any] = []
    hook = at(stage, lambda ctx: answers.append(act(ctx)), **options)
    hooks = {stage: [hook]}
    await invoke_tool(record(), {"n": 1}, session_id="s", registry=registry(), global_hooks_by_stage=hooks)
    return answers[0]


async def test_a_look_up_goes_request_session_global() -> None:
    """Contract 85, 87."""

    def act(ctx: InvokeContext) -> Any:
        ctx.bind_provider("all", "request")
        view = ctx.providers
        assert isinstance(view, Mapping)
        return [view[token] for token in ("all", "two", "one", "own")], [token in view for token in ("all", "own", "x")]

    assert await through(act) == (["request", "session", "global", "session"], [True, True, False])


async def test_a_token_that_no_scope_has_is_missing_or_the_default() -> None:
    """Contract 85, 87, C25."""

    def act(ctx: InvokeContext) -> Any:
        with pytest.raises(ProviderMissing, match="no provider for 'nobody'"):
            ctx.providers["nobody"]
        return ctx.providers.get("nobody"), ctx.providers.get("nobody", 5), ctx.providers.get("none", 5)

    assert await through(act) == (None, 5, None)


async def test_its_tokens_are_listed_and_nothing_is_made_until_it_is_looked_up() -> None:
    """Contract 84, 87."""
    MADE.clear()

    def act(ctx: InvokeContext) -> Any:
        ctx.bind_provider("mine", 1)
        view = ctx.providers
        listed = list(view)
        assert (len(view), Mail in view, "later" in view, MADE) == (len(listed), True, True, [])
        assert isinstance(view[Mail], Mail)
        assert view[Mail] is ctx.get(Mail)
        with pytest.raises(ProviderError, match=r"await ctx\.resolve"):
            view["later"]
        return listed

    assert await through(act) == ["mine", "all", "two", "own", "one", "none", Mail, "later"]
    assert MADE == ["mail"]


WRITES: dict[str, Callable[[Any], Any]] = {
    "set": lambda view: view.__setitem__("one", 1),
    "delete": lambda view: view.__delitem__("one"),
    "update": lambda view: view.update(one=1),
    "setdefault": lambda view: view.setdefault("new", 1),
    "pop": lambda view: view.pop("one"),
    "popitem": lambda view: view.popitem(),
    "clear": lambda view: view.clear(),
    "merge": lambda view: view.__ior__({"one": 1}),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("stage", [Stage.WILL_BIND_PROVIDERS, Stage.WILL_AUTHORIZE, Stage.WILL_AUDIT])
async def test_a_write_changes_nothing_and_says_what_to_write(stage: Stage, write: str) -> None:
    """Contract 86, 87."""

    def act(ctx: InvokeContext) -> Any:
        with pytest.raises(StageError, match=r"read-only; write ctx.bind_provider.*will_bind_providers"):
            WRITES[write](ctx.providers)
        with pytest.raises(AttributeError):
            ctx.providers = {}  # type: ignore[misc]
        return ctx.providers["one"], "new" in ctx.providers

    assert await through(act, stage=stage) == ("global", False)


async def test_a_shadow_sees_its_own_bindings_there_and_the_call_does_not() -> None:
    """Contract 87, 90."""
    seen: list[Any] = []

    def act(ctx: InvokeContext) -> None:
        ctx.bind_provider("evil", 1)
        seen.append((ctx.providers["evil"], "evil" in ctx.providers, "evil" in list(ctx.providers)))

    shadow = at(Stage.WILL_BIND_PROVIDERS, act, mode="shadow")
    look = at(Stage.WILL_AUTHORIZE, lambda ctx: seen.append(("evil" in ctx.providers, ctx.providers.get("evil"))))
    assert (await call(record(), shadow, look)).ok
    assert seen == [(1, True, True), (False, None)]


async def test_providers_of_a_container_are_found_as_by_get() -> None:
    """Contract 85, 87."""

    class Container(containers.DeclarativeContainer):
        mail: Any = providers.Singleton(dict, to="ann")

    seen: list[Any] = []

    def act(ctx: InvokeContext) -> None:
        seen.append((ctx.providers[Container.mail], Container.mail in ctx.providers))

    assert (await call(record(), at(Stage.WILL_AUTHORIZE, act), container=Container())).ok
    assert seen == [({"to": "ann"}, True)]


async def test_a_call_that_does_not_use_it_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cost when it is not used; the control uses it."""
    made: list[Any] = []
    original = frozen_views.ProvidersView

    def counting(*given: Any) -> Any:
        made.append(given)
        return original(*given)

    monkeypatch.setattr(context, "ProvidersView", counting)
    assert (await call(record(), at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.try_get("x")))).ok
    assert made == []
    assert (await call(record(), at(Stage.WILL_AUTHORIZE, seen_of))).ok
    assert len(made) == 1


def seen_of(ctx: InvokeContext) -> None:
    assert "x" not in ctx.providers
