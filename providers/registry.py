"""Dependency injection: instances from given values, factories and a container, in three scopes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.exits import Exit
from callgate.providers.ranks import Rank, ScopeName
from callgate.providers.recipes import MISSING, Recipe, describe_token
from callgate.providers.scope import ProviderScope, World, missing_provider
from callgate.providers.sessions import Membership, SessionTable

__all__ = ["MISSING", "ProviderRegistry", "ScopeName", "as_pairs", "describe_token", "missing_provider"]


class ProviderRegistry:
    """The global, session and request scopes. A look-up reads the request scope first, the global scope last.

    Args:
        container: a dependency-injector container, or None.
        now: a monotonic clock in seconds.
        session_ttl: seconds without use after which a session ends; None means never.
        max_sessions: the maximum number of sessions, beyond which the least recently used one ends; None means no limit.
    """

    def __init__(
        self,
        container: object = None,
        *,
        now: Callable[[], float] = time.monotonic,
        session_ttl: float | None = None,
        max_sessions: int | None = None,
    ) -> None:
        self.container = container
        self.world = World(container)
        self.recipes = self.world.recipes
        self.sessions = SessionTable(self.world, now, ttl=session_ttl, maximum=max_sessions)
        self._tokens: dict[Any, None] = {}  # in the order given
        self.ended = ProviderScope(self.world, Rank.REQUEST)
        self.ended.end()

    # ------------------------------------------------------------------ registration

    def register_singletons(self, providers: Mapping[Any, object]) -> None:
        """Register global instances by token. Raises ``ProviderError`` for a token that is registered already."""
        for token, instance in providers.items():
            self._take_token(token)
            self.recipes.given(token, instance)

    def provide(self, sources: Mapping[Any, object]) -> None:
        """Register instances, factories and ``Scoped`` factories by token. No factory is called yet.

        Raises:
            ProviderError: a token is registered already.
        """
        for token, source in sources.items():
            self._take_token(token)
            self.recipes.add(token, source)

    def register_session_providers(self, session_id: str, providers: Mapping[Any, object]) -> None:
        """Register instances for one session."""
        self.session_map(session_id).update(self.keyed(providers.items()))

    def _take_token(self, token: object) -> None:
        if token in self._tokens:
            raise ProviderError(
                f"a global provider for {describe_token(token)} is registered already; use override() to replace it in tests"
            )
        self._tokens[token] = None

    # ------------------------------------------------------------------ look-up

    @property
    def tokens(self) -> tuple[object, ...]:
        """The tokens of instances and factories that were registered, in order."""
        return tuple(self._tokens)

    def get_all_singletons(self) -> Mapping[Any, object]:
        """Return the global instances that exist now, by token; read-only."""
        peek = self.world.scope.peek
        found = {
            token: peek(recipe) for token in self._tokens if (recipe := self.recipes.of(token)).rank is Rank.GLOBAL
        }
        return MappingProxyType({token: one for token, one in found.items() if one is not MISSING})

    def find_global(self, token: object, modifier: object = None) -> object:
        """Return the global instance for a token, or ``MISSING``. A container may make its instance now."""
        recipe = self.recipes.of(token, modifier)
        if recipe.foreign is None or recipe.rank is not Rank.GLOBAL:
            return self.world.scope.peek(recipe)
        return self.world.scope.take(recipe)

    def session_map(self, session_id: str | None) -> dict[Any, Any]:
        """Return the mutable bindings of a session; without an id, a new dict."""
        return self.sessions.open(session_id).scope.bindings if session_id else {}

    def end_session(self, session_id: str) -> list[Exit]:
        """End a session. Return the instances to close (``await exit.leave()``); empty while calls still use it."""
        return self.sessions.end(session_id)

    def request(self, session_id: str | None = None, owner: Any = None) -> ProviderScope:
        """Return a scope for one request. The caller ends it with ``leave`` or ``async with``.

        Outside a tool call: ``async with registry.request() as scope``, and in it ``await
        scope.provide(registry.recipes.of(token))``. An error in the block is raised at the ``yield`` of its generators.
        """
        return ProviderScope(
            self.world, Rank.REQUEST, Membership(self.sessions, session_id, owner) if session_id else None
        )

    def keyed(self, bindings: Iterable[tuple[object, object]]) -> Iterable[tuple[object, object]]:
        """Return bindings by the keys of their recipes, which are equal for all names of a container's provider."""
        if self.container is None:
            return bindings
        return [(self.recipes.of(token).key, instance) for token, instance in bindings]

    # ------------------------------------------------------------------ tests

    @contextlib.contextmanager
    def override(self, providers: Mapping[Any, object]) -> Generator[None]:
        """Replace the providers of these tokens with other instances or factories, for tests.

        Raises:
            ProviderError: no provider is registered for a token.
        """
        before, replaced = self.world.overrides, {}
        for token, source in providers.items():
            recipe = self.recipes.of(token)
            if not recipe.is_provided:
                raise ProviderError(
                    f"there is no provider for {describe_token(token)} to override; register it on the gate first"
                )
            replaced[recipe.key] = self.recipes.substitute(recipe, source)
        self.world.replace({**before, **replaced})
        try:
            yield
        finally:
            self.world.replace(before)

    def __contains__(self, token: object) -> bool:
        return self.recipes.of(token).is_provided

    def global_recipes(self) -> list[Recipe]:
        """Return the recipes that run when the gate opens: global factories and global ``Scoped`` providers, in order.

        Raises:
            ProviderError: a factory needs itself or a token without a provider; the message shows the path.
        """
        found = [*map(self.recipes.of, self._tokens), *self.recipes.scoped_in_container()]
        for one in found:
            if one.rank > Rank.REQUEST:  # a hook may bind the needs of a request
                self.recipes.check(one, (), "the gate")
        return [one for one in found if one.rank is Rank.GLOBAL and one.factory]


def as_pairs(bindings: Any) -> Iterable[tuple[object, object]]:
    """Return the pairs of a result of ``will_bind_providers``, which is a mapping or an iterable of pairs.

    Raises:
        TypeError: the result is neither.
    """
    if isinstance(bindings, Mapping):
        return list(bindings.items())
    try:
        return [(token, instance) for token, instance in bindings]
    except (TypeError, ValueError):
        raise TypeError(
            f"will_bind_providers returned {type(bindings).__name__}; return a mapping or an iterable of pairs"
        ) from None
