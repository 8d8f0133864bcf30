"""Scopes of instances. A scope makes an instance at most once, and closes it exactly once, in reverse order."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future as ThreadFuture
from typing import Any, Literal, Self, overload

from callgate.errors import ProviderError, ProviderMissing
from callgate.providers.exits import (
    TAKING,
    Begun,
    Exit,
    PlainThreads,
    begin_instance,
    begin_instance_async,
    current_task,
    leave_all,
)
from callgate.providers.ranks import ASKING, Rank
from callgate.providers.recipe import MISSING, Recipe
from callgate.providers.recipes import Recipes, describe_token, scoped_among

_LOCK = threading.Lock()
"""Held for rare steps that are not atomic: waiting for another task's instance, and making the session of a request."""


class World:
    """The state that all scopes of a registry share: the recipes, the global scope, and the overrides of tests."""

    def __init__(self, container: object = None) -> None:
        self.recipes = Recipes(container)
        self.overrides: dict[object, Recipe] = {}
        self.scope = ProviderScope(self, Rank.GLOBAL)
        self.plain: object = object()  # replaced when global instances or overrides change: caches compare it

    def replace(self, overrides: Mapping[object, Recipe]) -> None:
        """Set the overrides."""
        self.overrides, self.plain = dict(overrides), object()


class ProviderScope:
    """The instances of one request, session or gate. ``async with`` closes those of a request.

    ``bindings`` are instances that a hook or the caller has bound: they win over recipes and are not closed. ``holds``
    counts the users of the scope. *session* returns the session scope of a request (see ``sessions.Membership``); without
    it the request has its own session.

    Tasks of one event loop and worker threads may use a scope at the same time.
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

    threads: PlainThreads | None = None  # that of an execution runs the code of plain providers

    def __init__(self, world: World, rank: Rank, session: Any = None) -> None:
        self.world = world
        self.rank = rank
        self.instances: dict[Recipe, Any] = {}
        self.exits: list[Exit] = []
        self.bindings: dict[object, object] = {}
        self.closed = False
        self.holds = 1
        self._session = session
        self._making: dict[Recipe, object] = {}
        self._waiting: dict[Recipe, list[ThreadFuture[None] | asyncio.Future[None]]] | None = None

    # ------------------------------------------------------------------ look-up

    @overload
    def session(self, make: Literal[True]) -> ProviderScope: ...
    @overload
    def session(self, make: bool) -> ProviderScope | None: ...
    def session(self, make: bool) -> ProviderScope | None:
        """Return the session scope of a request; None when there is no session yet and *make* is False.

        Raises:
            Denied: the session belongs to another user.
            ProviderError: the request has ended.
        """
        if make and self.closed:
            raise ProviderError(
                f"the session was requested after the {self.rank} had ended; use it within the {self.rank}"
            )
        if self._session is not None:
            return self._session(make)  # type: ignore[no-any-return]
        if make:
            with _LOCK:
                if self._session is None:
                    self._session = OwnSession(self.world)
        return self._session and self._session(make)

    def bound(self, key: object) -> object:
        """Return the instance that is bound for a key, in this request or its session, or ``MISSING``."""
        found = self.bindings.get(key, MISSING) if self.bindings else MISSING
        if found is MISSING and self._session is not None:
            session = self._session(False)
            if session is not None and session.bindings:
                found = session.bindings.get(key, MISSING)
        return found

    def home(self, rank: Rank) -> ProviderScope:
        """Return the scope that keeps instances of a rank."""
        if rank is Rank.GLOBAL:
            return self.world.scope
        if rank is Rank.SESSION and self.rank is Rank.REQUEST:
            return self.session(True)
        if rank is Rank.EXECUTION:
            raise ProviderError(
                "a provider of the scope 'execution' was requested outside of an execution; use it in the tool, in "
                "will_execute or did_execute, or in an around_execute hook that wraps each attempt"
            )
        return self

    def peek(self, recipe: Recipe) -> object:
        """Return the instance for a recipe if it exists, else ``MISSING``."""
        if (self.bindings or self._session is not None) and (found := self.bound(recipe.key)) is not MISSING:
            return found
        if self.world.overrides:
            recipe = self.world.overrides.get(recipe.key, recipe)
        if recipe.value is not MISSING:
            return recipe.value
        if recipe.factory is None or recipe.is_overridden:
            return MISSING
        return (self if recipe.rank is self.rank else self.home(recipe.rank)).instances.get(recipe, MISSING)

    # ------------------------------------------------------------------ creation

    async def provide(self, recipe: Recipe) -> Any:
        """Return the instance for a recipe. The first caller makes it, in its own task.

        Raises:
            ProviderMissing: the token has no provider.
            ProviderError: the scope has ended, or the factory needs its own instance.
        """
        if (found := self.peek(recipe)) is not MISSING:
            return found
        recipe = self._overriding(recipe)
        if recipe.factory is None:
            return await self._call_foreign(recipe)
        if recipe.rank is not self.rank and (home := self.home(recipe.rank)) is not self:
            return await home.provide(recipe)
        mine = (current_task(),)  # setdefault is atomic for threads, too: one caller makes the instance
        while self._making.setdefault(recipe, mine) is not mine or recipe in self.instances or self.closed:
            if (found := await self._made_elsewhere(recipe, mine)) is not MISSING:
                return found
        try:
            instance = self.instances[recipe] = await self._make(recipe, mine[0])
        finally:
            del self._making[recipe]
            if self._waiting is not None:
                self._wake(recipe)
        return instance

    def take(self, recipe: Recipe) -> Any:
        """Run ``provide`` in synchronous code.

        Raises:
            ProviderError: the factory awaits.
        """
        found = self.peek(recipe)
        if found is not MISSING:
            return found
        recipe = self._overriding(recipe)
        if recipe.foreign is not None and not scoped_among(recipe, self.world.overrides):
            return recipe.foreign()
        making = self.provide(recipe)
        try:
            if recipe.foreign is None and (recipe.is_async or (self.world.overrides and self._waits_for(recipe))):
                raise ProviderError(f"{recipe.name} is made asynchronously; use `await ctx.resolve(...)`")
            making.send(None)
        except StopIteration as made:
            return made.value
        finally:
            making.close()
        raise ProviderError(f"{recipe.name} is made asynchronously; use `await ctx.resolve(...)`")

    def _waits_for(self, recipe: Recipe) -> bool:
        """Return True if a missing instance needs asynchronous code, which must not begin where nothing can await it."""
        if self.peek(recipe) is not MISSING:
            return False
        recipe = self._overriding(recipe)
        return recipe.begins_on_loop or any(map(self._waits_for, recipe.needs))

    def _overriding(self, recipe: Recipe) -> Recipe:
        """Return the recipe that replaces this one in a test, or the same recipe."""
        world = self.world
        if world.overrides:
            recipe = world.overrides.get(recipe.key, recipe)
        while recipe.scoped is not None and (other := recipe.scoped.last_overriding) is not None:
            recipe = world.recipes.for_provider(other)
        return recipe

    async def _make(self, recipe: Recipe, task: object) -> object:
        peek, provide = self.peek, self.provide
        arguments = [await provide(need) for need in recipe.args] if recipe.args else ()
        named: dict[str, object] = {}
        for name, need in recipe.kwargs:
            found = peek(need)
            named[name] = await provide(need) if found is MISSING else found
        make = functools.partial(recipe.factory or missing_provider, *arguments, **named)
        given = (*arguments, *named.values())
        is_first = task not in TAKING
        TAKING.add(task)  # as ``Taking``, which costs more
        try:
            instance, left = await self._begin(recipe, make, given)
            if left is None and inspect.isawaitable(instance):
                made = await instance
                instance, left = await self._begin(recipe, lambda: made, given)
            if left is None:
                if self.closed or recipe.is_over:
                    raise self._ended_meanwhile(recipe)
                return instance
            self.exits.append(left)
        finally:
            if is_first:
                TAKING.discard(task)
        if (self.closed or recipe.is_over) and left in self.exits:  # the scope ended meanwhile and will not close it
            self.exits.remove(left)
            await left.leave()
            raise self._ended_meanwhile(recipe)
        return instance

    async def _begin(self, recipe: Recipe, make: Callable[[], object], given: Collection[object]) -> Begun:
        """Call a factory and begin its instance: plain code on the thread of the execution, if it has one."""
        if self.threads is None or recipe.begins_on_loop:
            begun = begin_instance(recipe, make, given, self.threads)
        else:
            begun = await self.threads.start(
                functools.partial(begin_instance, recipe, make, given, self.threads), _discard
            )
        return begun if begun[1] is not None else await begin_instance_async(recipe, begun[0], given)

    def _ended_meanwhile(self, recipe: Recipe) -> ProviderError:
        ended = "block of gate.override" if recipe.is_over else self.rank
        return ProviderError(f"the {ended} ended while {recipe.name} was created")

    async def _call_foreign(self, recipe: Recipe) -> object:
        """Call a provider of dependency-injector. The scoped and overridden instances that it needs are made first."""
        if recipe.foreign is None:
            raise missing_provider(recipe.key)
        needs = scoped_among(recipe, self.world.overrides)
        if not needs:
            found = recipe.foreign()
        else:
            for need in needs:
                await self.provide(need)
            token = ASKING.set(self)
            try:
                found = recipe.foreign()
            finally:
                ASKING.reset(token)
        return await found if inspect.isawaitable(found) else found

    def made_for(self, scoped: object) -> object:
        """Return the instance of a scoped provider that another provider of the container needs."""
        return self.take(self.world.recipes.for_provider(scoped))

    async def _made_elsewhere(self, recipe: Recipe, mine: tuple[object]) -> object:
        """Return an instance that exists now or that another task makes; ``MISSING`` when this task has to make it."""
        maker = self._making.get(recipe)
        if maker is mine:
            del self._making[recipe]
            self._wake(recipe)
            if self.closed:
                raise ProviderError(
                    f"{recipe.name} was requested after its {self.rank} had ended; use it within the {self.rank}"
                )
        elif maker is not None:
            if maker == mine:
                raise ProviderError(f"the factory of {recipe.name} needs {recipe.name} itself; break the circle")
            await self._wait(recipe)
        return self.instances.get(recipe, MISSING)

    async def _wait(self, recipe: Recipe) -> None:
        try:
            waiting: ThreadFuture[None] | asyncio.Future[None] = asyncio.get_running_loop().create_future()
        except RuntimeError:  # a plain function in its thread
            waiting = ThreadFuture()
        with _LOCK:
            self._waiting = {} if self._waiting is None else self._waiting
            self._waiting.setdefault(recipe, []).append(waiting)
        if recipe not in self._making:
            return  # the maker finished before this waiter was registered
        if isinstance(waiting, ThreadFuture):
            waiting.result()
        else:
            await waiting

    def _wake(self, recipe: Recipe) -> None:
        with _LOCK:
            woken = (self._waiting or {}).pop(recipe, ())
        for one in woken:
            if isinstance(one, ThreadFuture):
                one.set_result(None)
            else:
                one.get_loop().call_soon_threadsafe(_wake_task, one)

    # ------------------------------------------------------------------ end

    def leave(self) -> list[Exit]:
        """End a request. Return the instances to close in order; with its session's if it was the last call of an ended one."""
        exits = self.end()
        return exits if self._session is None else exits + self._session.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, where: object) -> None:
        await leave_all(self.leave(), error)

    def end(self) -> list[Exit]:
        """End the scope. Return the instances to close, last made first; each is returned once."""
        self.closed = True
        exits, self.exits = self.exits[::-1], []
        self.instances = {}
        if self.rank is Rank.GLOBAL:
            self.world.plain = object()
        return exits

    def take_out(self, recipes: Collection[Recipe]) -> list[Exit]:
        """Forget the instances of these recipes. Return those to close, last made first."""
        for recipe in recipes:
            self.instances.pop(recipe, None)
        left = [one for one in self.exits if one.recipe in recipes]
        self.exits = [one for one in self.exits if one.recipe not in recipes]
        return left[::-1]

    def reopen(self) -> None:
        """Reopen an ended scope."""
        self.closed = False


class OwnSession:
    """The session of a request without a session id; it ends with the request."""

    __slots__ = ("_scope",)

    def __init__(self, world: World) -> None:
        self._scope = ProviderScope(world, Rank.SESSION)

    def __call__(self, make: bool) -> ProviderScope:
        """Return the scope of the session."""
        return self._scope

    def leave(self) -> list[Exit]:
        """End the session, and return the instances to close."""
        return self._scope.end()


def _discard(begun: Begun) -> None:
    if begun[1] is not None:
        begun[1].discard()


def _wake_task(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def missing_provider(token: object) -> ProviderMissing:
    """Return the error for a token without a provider."""
    return ProviderMissing(
        f"no provider for {describe_token(token)} in request, session or global scope; "
        "bind it in will_bind_providers, or pass it to the gate: Gate(provide={...}) or Gate(container=...)"
    )
