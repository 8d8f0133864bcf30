"""Scopes at work: instances are made at most once in one, and closed exactly once, in reverse."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future as Waiting
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Literal, Self, overload

from callgate.errors import ProviderError, ProviderMissing
from callgate.providers.recipes import MISSING, Recipe, Recipes, describe, scoped_among
from callgate.providers.scoped import ASKING, Rank

_RARELY = threading.Lock()
"""Held for what is seldom and not one step: waiting for another's making, and a request's own session."""


class World:
    """What all scopes of one registry share: the recipes, the global scope, and what tests put in place of others."""

    def __init__(self, container: Any = None) -> None:
        self.recipes = Recipes(container)
        self.overrides: dict[Any, Recipe] = {}
        self.scope = Scope(self, Rank.GLOBAL)
        self.plain: object = object()  # another one whenever what is global, or what replaces it, has changed

    def replace(self, overrides: Mapping[Any, Recipe]) -> None:
        """Put these in the place of others from now on, and nothing else."""
        self.overrides, self.plain = dict(overrides), object()


class Scope:
    """The instances of one request, session or gate, and how they are closed: ``async with`` closes a request's.

    ``bindings`` are instances that were bound by hand: they win over recipes and are not closed. ``holds`` counts who
    still uses it. *session* is a request's way to its session's scope (``sessions.py``); without one it has its own.

    Tasks of one event loop and worker threads may ask at the same time.
    """

    __slots__ = (
        "_making",
        "_session",
        "_waiting",
        "bindings",
        "closed",
        "exits",
        "holds",
        "instances",
        "rank",
        "world",
    )

    def __init__(self, world: World, rank: Rank, session: Any = None) -> None:
        self.world = world
        self.rank = rank
        self.instances: dict[Recipe, Any] = {}
        self.exits: list[Exit] = []
        self.bindings: dict[Any, Any] = {}
        self.closed = False
        self.holds = 1
        self._session = session
        self._making: dict[Recipe, Any] = {}
        self._waiting: dict[Recipe, list[Any]] | None = None

    # ------------------------------------------------------------------ looking

    @overload
    def session(self, make: Literal[True]) -> Scope: ...
    @overload
    def session(self, make: bool) -> Scope | None: ...
    def session(self, make: bool) -> Scope | None:
        """A request's session scope; None when there is none yet and *make* is False.

        Raises:
            Denied: the session belongs to another user.
            ProviderError: the request has ended.
        """
        if make and self.closed:
            raise ProviderError(f"the session is asked for after the {self.rank} has ended")
        if self._session is not None:
            return self._session(make)  # type: ignore[no-any-return]
        if make:
            with _RARELY:
                if self._session is None:
                    self._session = Alone(self.world)
        return self._session and self._session(make)

    def bound(self, key: Any) -> Any:
        """What was bound by hand for a key, in this request or its session; or ``MISSING``."""
        found = self.bindings.get(key, MISSING) if self.bindings else MISSING
        if found is MISSING and self._session is not None:
            session = self._session(False)
            if session is not None and session.bindings:
                found = session.bindings.get(key, MISSING)
        return found

    def home(self, rank: Rank) -> Scope:
        """The scope that keeps instances of a rank."""
        if rank is Rank.GLOBAL:
            return self.world.scope
        if rank is Rank.SESSION and self.rank is Rank.REQUEST:
            return self.session(True)
        return self

    def peek(self, recipe: Recipe) -> Any:
        """The instance for a recipe if there is one already, else ``MISSING``."""
        if (self.bindings or self._session is not None) and (found := self.bound(recipe.key)) is not MISSING:
            return found
        if self.world.overrides:
            recipe = self.world.overrides.get(recipe.key, recipe)
        if recipe.value is not MISSING:
            return recipe.value
        if recipe.factory is None or recipe.is_overridden:
            return MISSING
        return (self if recipe.rank is self.rank else self.home(recipe.rank)).instances.get(recipe, MISSING)

    # ------------------------------------------------------------------ making

    async def provide(self, recipe: Recipe) -> Any:
        """The instance for a recipe; made here and now if it is the first to ask, in the caller's own task.

        Raises:
            ProviderMissing: nobody provides it.
            ProviderError: the scope is closed, or making it asks for itself.
        """
        if (found := self.peek(recipe)) is not MISSING:
            return found
        recipe = self._in_place_of(recipe)
        if recipe.factory is None:
            return await self._ask(recipe)
        home = self if recipe.rank is self.rank else self.home(recipe.rank)
        mine = (_whoami(),)  # setdefault is one step, for threads, too: one of them makes it
        while home._making.setdefault(recipe, mine) is not mine or recipe in home.instances or home.closed:
            if (found := await home._meanwhile(recipe, mine)) is not MISSING:
                return found
        try:
            instance = home.instances[recipe] = await home._make(recipe)
        finally:
            del home._making[recipe]
            if home._waiting is not None:
                home._wake(recipe)
        return instance

    def take(self, recipe: Recipe) -> Any:
        """``provide`` for those who cannot wait.

        Raises:
            ProviderError: making it has to wait.
        """
        found = self.peek(recipe)
        if found is not MISSING:
            return found
        recipe = self._in_place_of(recipe)
        if recipe.foreign is not None and not scoped_among(recipe):
            return recipe.foreign()
        making = self.provide(recipe)
        try:
            if recipe.waits and recipe.foreign is None:
                raise ProviderError(f"{recipe.name} is made asynchronously; use `await ctx.resolve(...)`")
            making.send(None)
        except StopIteration as made:
            return made.value
        finally:
            making.close()
        raise ProviderError(f"{recipe.name} is made asynchronously; use `await ctx.resolve(...)`")

    def _in_place_of(self, recipe: Recipe) -> Recipe:
        """What makes it now: a test may have put another in its place."""
        world = self.world
        if world.overrides:
            recipe = world.overrides.get(recipe.key, recipe)
        while recipe.scoped is not None and (other := recipe.scoped.last_overriding) is not None:
            recipe = world.recipes.for_provider(other)
        return recipe

    async def _make(self, recipe: Recipe) -> Any:
        peek, provide = self.peek, self.provide
        arguments = [await provide(need) for need in recipe.args] if recipe.args else ()
        named: dict[str, Any] = {}
        for name, need in recipe.kwargs:
            found = peek(need)
            named[name] = await provide(need) if found is MISSING else found
        made: Any = recipe.factory(*arguments, **named)  # type: ignore[misc]
        kind = made.__class__
        if kind is _AsyncGeneratorContextManager or kind is _GeneratorContextManager:
            made = made.gen
            kind = made.__class__
        if kind is AsyncGeneratorType:
            try:
                instance = await made.__anext__()
            except StopAsyncIteration:
                raise ProviderError(f"the generator of {recipe.name} gave nothing") from None
        elif kind is GeneratorType:
            instance = next(made, MISSING)
            if instance is MISSING:
                raise ProviderError(f"the generator of {recipe.name} gave nothing")
        else:
            instance = await made if kind is CoroutineType or inspect.isawaitable(made) else made
            if self.closed:
                raise ProviderError(f"the {self.rank} ended while {recipe.name} was made")
            return instance
        left = Exit(recipe, made)
        self.exits.append(left)
        if self.closed and left in self.exits:  # ended while it was made, and nobody would close it later
            self.exits.remove(left)
            await left.leave()
            raise ProviderError(f"the {self.rank} ended while {recipe.name} was made")
        return instance

    async def _ask(self, recipe: Recipe) -> Any:
        """One of dependency-injector's own providers; the scoped ones that it will ask for are made first."""
        if recipe.foreign is None:
            raise missing(recipe.key)
        needs = scoped_among(recipe)
        if not needs:
            found = recipe.foreign()
        else:
            for need in needs:
                await self.provide(need)
            asked = ASKING.set(self)
            try:
                found = recipe.foreign()
            finally:
                ASKING.reset(asked)
        return await found if inspect.isawaitable(found) else found

    def made_for(self, scoped: Any) -> Any:
        """What a scoped provider answers to one of dependency-injector's own that asks it."""
        return self.take(self.world.recipes.for_provider(scoped))

    async def _meanwhile(self, recipe: Recipe, mine: tuple[Any]) -> Any:
        """It cannot be made now: it was, or the scope has ended, or somebody is at it. Then wait, and look again."""
        maker = self._making.get(recipe)
        if maker is mine:
            del self._making[recipe]
            self._wake(recipe)
            if self.closed:
                raise ProviderError(f"{recipe.name} is asked for after its {self.rank} has ended")
        elif maker is not None:
            if maker == mine:
                raise ProviderError(f"making {recipe.name} asks for {recipe.name} itself")
            await self._wait(recipe)
        return self.instances.get(recipe, MISSING)

    async def _wait(self, recipe: Recipe) -> None:
        try:
            waiting: Any = asyncio.get_running_loop().create_future()
        except RuntimeError:  # a plain function in its thread
            waiting = Waiting()
        with _RARELY:
            self._waiting = {} if self._waiting is None else self._waiting
            self._waiting.setdefault(recipe, []).append(waiting)
        if recipe not in self._making:
            return  # done before it could know of us
        if isinstance(waiting, Waiting):
            waiting.result()
        else:
            await waiting

    def _wake(self, recipe: Recipe) -> None:
        with _RARELY:
            woken = (self._waiting or {}).pop(recipe, ())
        for one in woken:
            if isinstance(one, Waiting):
                one.set_result(None)
            else:
                one.get_loop().call_soon_threadsafe(_end_wait, one)

    # ------------------------------------------------------------------ closing

    def leave(self) -> list[Exit]:
        """End a request: what has to be closed, in order; its session's, too, if that is over and this was its last."""
        exits = self.end()
        return exits if self._session is None else exits + self._session.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> None:
        await leave_all(self.leave(), error)

    def end(self) -> list[Exit]:
        """Nothing more is made here; what has to be closed, the last made first. Each is given out once."""
        self.closed = True
        exits, self.exits = self.exits[::-1], []
        self.instances = {}
        if self.rank is Rank.GLOBAL:
            self.world.plain = object()
        return exits

    def reopen(self) -> None:
        """Start again, empty."""
        self.closed = False


class Alone:
    """The session of a request that names none: its own, and over with it (contract C26)."""

    __slots__ = ("_scope",)

    def __init__(self, world: World) -> None:
        self._scope = Scope(world, Rank.SESSION)

    def __call__(self, make: bool) -> Scope:
        """Its scope."""
        return self._scope

    def leave(self) -> list[Exit]:
        """The request is over; what has to be closed."""
        return self._scope.end()


class Exit:
    """How one instance is closed."""

    __slots__ = ("generator", "recipe")

    def __init__(self, recipe: Recipe, generator: Any) -> None:
        self.recipe = recipe
        self.generator = generator

    async def leave(self, error: BaseException | None = None) -> None:
        """Run what follows the ``yield``; an *error* of a request is raised at it where the instance was the request's own.

        What a session or the gate keeps outlives the request and sees nothing of its error.

        Raises:
            ProviderError: the generator yields a second time.
        """
        generator = self.generator
        if self.recipe.rank is not Rank.REQUEST:
            error = None
        try:
            if generator.__class__ is AsyncGeneratorType:
                await (generator.__anext__() if error is None else generator.athrow(error))
                await generator.aclose()
            else:
                next(generator) if error is None else generator.throw(error)
                generator.close()
        except (StopAsyncIteration, StopIteration):
            return
        except BaseException as raised:
            if raised is error:
                return
            raise
        raise ProviderError(f"the generator of {self.recipe.name} yields a second time")


async def leave_all(
    exits: Iterable[Exit],
    error: BaseException | None = None,
    on_failure: Callable[[Exit, BaseException], None] = lambda *_: None,
) -> None:
    """Leave every one, whatever another raises; each failure is told to *on_failure*.

    Raises:
        BaseException: the first that one raised, a cancellation before others.
    """
    failed: list[BaseException] = []
    for one in exits:
        try:
            await one.leave(error)
        except BaseException as raised:  # noqa: BLE001  (raised below, when the others are closed)
            failed.append(raised)
            on_failure(one, raised)
    if failed:
        raise next((one for one in failed if not isinstance(one, Exception)), failed[0])


def _whoami() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a plain function in its thread
        return threading.current_thread()


def _end_wait(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def missing(token: Any) -> ProviderMissing:
    """The error for a token that no scope provides."""
    return ProviderMissing(
        f"no provider for {describe(token)} in request, session or global scope; "
        "bind it in will_bind_providers, or give it to the gate: Gate(provide={...}) or Gate(container=...)"
    )
