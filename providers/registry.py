"""What provides instances to invocations: given values, factories and a container, in three scopes (contract 84)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.recipes import MISSING, Recipe, describe
from callgate.providers.scope import Exit, Scope, World, missing
from callgate.providers.scoped import Rank, ScopeName
from callgate.providers.sessions import Membership, Sessions

__all__ = ["MISSING", "ProviderRegistry", "ScopeName", "as_pairs", "describe", "missing"]


class ProviderRegistry:
    """The three scopes: global, a session's, a request's; looked up from the last to the first (contract 84, 85).

    *container* is a dependency-injector container or None; *now* a monotonic clock in seconds. Sessions end when
    nobody used them for *session_ttl* seconds, or as the least recently used of more than *max_sessions*; None means
    never.
    """

    def __init__(
        self,
        container: Any = None,
        *,
        now: Callable[[], float] = time.monotonic,
        session_ttl: float | None = None,
        max_sessions: int | None = None,
    ) -> None:
        self.container = container
        self.world = World(container)
        self.recipes = self.world.recipes
        self.sessions = Sessions(self.world, now, ttl=session_ttl, most=max_sessions)
        self._tokens: dict[Any, None] = {}  # in the order given
        self.ended = Scope(self.world, Rank.REQUEST)
        self.ended.end()

    # ------------------------------------------------------------------ putting in

    def register_singletons(self, providers: Mapping[Any, Any]) -> None:
        """Add global instances, keyed by token. Raises ``ProviderError`` for a token that is taken."""
        for token, instance in providers.items():
            self._take_token(token)
            self.recipes.given(token, instance)

    def provide(self, sources: Mapping[Any, Any]) -> None:
        """Add instances, factories and ``Scoped`` factories, keyed by token; nothing is made yet.

        Raises:
            ProviderError: a token is taken.
        """
        for token, source in sources.items():
            self._take_token(token)
            self.recipes.add(token, source)

    def register_session_providers(self, session_id: str, providers: Mapping[Any, Any]) -> None:
        """Add instances to one session."""
        self.session_map(session_id).update(self.keyed(providers.items()))

    def _take_token(self, token: Any) -> None:
        if token in self._tokens:
            raise ProviderError(f"a global provider for {describe(token)} is registered already")
        self._tokens[token] = None

    # ------------------------------------------------------------------ looking

    def get_all_singletons(self) -> Mapping[Any, Any]:
        """The global instances that are there now, by token; read-only."""
        peek = self.world.scope.peek
        found = {
            token: peek(recipe) for token in self._tokens if (recipe := self.recipes.of(token)).rank is Rank.GLOBAL
        }
        return MappingProxyType({token: one for token, one in found.items() if one is not MISSING})

    def find_global(self, token: Any, modifier: Any = None) -> Any:
        """The global instance for a token, or ``MISSING``; what a container holds may be made by asking."""
        recipe = self.recipes.of(token, modifier)
        if recipe.foreign is None or recipe.rank is not Rank.GLOBAL:
            return self.world.scope.peek(recipe)
        return self.world.scope.take(recipe)

    def session_map(self, session_id: str | None) -> dict[Any, Any]:
        """What was bound in a session, mutable; without an id, a new map that nobody shares (contract C26)."""
        return self.sessions.open(session_id).scope.bindings if session_id else {}

    def end_session(self, session_id: str) -> list[Exit]:
        """End a session; what is left to close (``await exit.leave()``), nothing while calls still use it."""
        return self.sessions.end(session_id)

    def request(self, session_id: str | None = None, owner: Any = None) -> Scope:
        """A scope for one request; whoever takes it ends it with ``leave``, or with ``async with``.

        Outside of any invocation: ``async with registry.request() as scope``, and in it ``await
        scope.provide(registry.recipes.of(token))``. What is raised in it is raised at the ``yield`` of what it made.
        """
        return Scope(self.world, Rank.REQUEST, Membership(self.sessions, session_id, owner) if session_id else None)

    def keyed(self, bindings: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
        """Bindings under the keys that recipes have: a container's provider has one, however it is named."""
        if self.container is None:
            return bindings
        return [(self.recipes.of(token).key, instance) for token, instance in bindings]

    # ------------------------------------------------------------------ tests

    @contextlib.contextmanager
    def override(self, providers: Mapping[Any, Any]) -> Generator[None]:
        """Put other instances or factories in the place of these tokens; for tests.

        Raises:
            ProviderError: nobody provides the token, so nothing would use the other.
        """
        before, put = self.world.overrides, {}
        for token, source in providers.items():
            recipe = self.recipes.of(token)
            if not recipe.is_provided:
                raise ProviderError(f"nobody provides {describe(token)}, so there is nothing to override")
            put[recipe.key] = self.recipes.substitute(recipe, source)
        self.world.replace({**before, **put})
        try:
            yield
        finally:
            self.world.replace(before)

    def __contains__(self, token: Any) -> bool:
        return self.recipes.of(token).is_provided

    def global_recipes(self) -> list[Recipe]:
        """What is made as the gate opens: global factories and a container's global ``Scoped``, in order.

        Raises:
            ProviderError: a factory that no tool takes needs itself, or what nobody provides; names the path.
        """
        found = [*map(self.recipes.of, self._tokens), *self.recipes.scoped_in_container()]
        for one in found:
            if one.rank is not Rank.REQUEST:  # what a request's needs, a hook may bind
                self.recipes.check(one, (), "the gate")
        return [one for one in found if one.rank is Rank.GLOBAL and one.factory]


def as_pairs(bindings: Any) -> Iterable[tuple[Any, Any]]:
    """What ``will_bind_providers`` may return: a mapping or pairs (contract 89).

    Raises:
        TypeError: it is neither.
    """
    if isinstance(bindings, Mapping):
        return list(bindings.items())
    try:
        return [(token, instance) for token, instance in bindings]
    except (TypeError, ValueError):
        raise TypeError(
            f"will_bind_providers returned {type(bindings).__name__}; return a mapping or an iterable of pairs"
        ) from None
