"""Dependency injection: instances from given values, factories and a container, in three scopes."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.exits import Exit
from callgate.providers.guesses import Explained, explain_camel_case
from callgate.providers.overriding import OverrideBlock, Overriding
from callgate.providers.ranks import Rank, ScopeName
from callgate.providers.recipe import MISSING, Recipe
from callgate.providers.recipes import describe_token
from callgate.providers.scope import ProviderScope, World, missing_provider
from callgate.providers.sessions import Membership, SessionTable

__all__ = ["MISSING", "ProviderRegistry", "ScopeName", "as_pairs", "describe_token", "missing_provider"]


@explain_camel_case
class ProviderRegistry(metaclass=Explained):
    """The global, session and request scopes. A look-up reads the request scope first, the global scope last.

    Args:
        container: a dependency-injector container, or None.
        now: a monotonic clock in seconds.
        session_ttl: seconds without use after which a session ends; None means never.
        max_sessions: the maximum number of sessions, beyond which the least recently used one ends; None means no limit.
        sessions_per_user: the same for the sessions of one user.
    """

    def __init__(
        self,
        container: object = None,
        *,
        now: Callable[[], float] = time.monotonic,
        session_ttl: float | None = None,
        max_sessions: int | None = None,
        sessions_per_user: int | None = None,
    ) -> None:
        self.container = container
        self.world = World(container)
        self.recipes = self.world.recipes
        self.sessions = SessionTable(
            self.world, now, ttl=session_ttl, maximum=max_sessions, per_owner=sessions_per_user
        )
        self._tokens: dict[object, None] = {}  # in the order given
        self.overriding = Overriding(self.world, self.sessions, self.global_recipes)
        self.ended = ProviderScope(self.world, Rank.REQUEST)
        self.ended.end()

    # ------------------------------------------------------------------ registration

    def register_singletons(self, providers: Mapping[Any, object]) -> None:
        """Register global instances by token. ``provide`` registers what makes them.

        Raises:
            ProviderError: it is no mapping, a token is registered already, or a class or function stands in place of its
                instance.
        """
        _check_mapping("register_singletons", providers)
        for token, instance in providers.items():
            if inspect.isclass(token) and (inspect.isclass(instance) or inspect.isfunction(instance)):
                name = describe_token(token)
                raise ProviderError(
                    f"register_singletons takes instances, and that of {name} is a {type(instance).__name__}; write "
                    f"register_singletons({{{name}: {name}(...)}}), or provide({{{name}: factory}}) for what makes it"
                )
            self._take_token(token)
            self.recipes.given(token, instance)

    def provide(self, sources: Mapping[Any, object]) -> None:
        """Register instances, factories and ``Scoped`` factories by token. No factory is called yet.

        Raises:
            ProviderError: it is no mapping, or a token is registered already.
        """
        _check_mapping("provide", sources)
        for token, source in sources.items():
            self._take_token(token)
            self.recipes.add(token, source)

    def register_session_providers(self, session_id: str, providers: Mapping[Any, object]) -> None:
        """Register instances for one session.

        Raises:
            ProviderError: it is no mapping.
        """
        _check_mapping("register_session_providers", providers)
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

    def get_all_singletons(self) -> Mapping[object, object]:
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

    def session_map(self, session_id: str | None) -> dict[object, object]:
        """Return the mutable bindings of a session; without an id, a new dict."""
        return self.sessions.open(session_id).scope.bindings if session_id else {}

    def end_session(self, session_id: str) -> list[Exit]:
        """End a session. Return the instances to close (``await exit.leave()``); empty while calls still use it."""
        return self.sessions.end(session_id)

    def request(self, session_id: str | None = None, owner: object = None) -> ProviderScope:
        """Return a scope for one request. The caller ends it with ``leave`` or ``async with``.

        Outside a tool call: ``async with registry.request() as scope``, and in it ``await
        scope.provide(registry.recipes.of(token))``. An error in the block is raised at the ``yield`` of its generators.
        """
        return ProviderScope(
            self.world, Rank.REQUEST, Membership(self.sessions, session_id, owner) if session_id else None
        )

    def keyed(self, bindings: Iterable[tuple[object, object]]) -> Iterable[tuple[object, object]]:
        """Return bindings by the keys of their recipes, which are equal for all names of a container's provider."""
        if not self.recipes.renames:
            return bindings
        return [(self.recipes.of(token).key, instance) for token, instance in bindings]

    # ------------------------------------------------------------------ tests

    def override(self, providers: Mapping[Any, object]) -> OverrideBlock:
        """Replace the providers of these tokens with other instances or factories, for tests: ``with`` or ``async with``.

        What was built from them, also in a container, is built anew for the block, and closed at its end. Blocks may
        overlap and end in any order.

        Raises:
            ProviderError: at the start of the block: no provider is registered for a token, or an override would not
                reach what was built from it, such as a ``Resource`` of the container.
        """
        return OverrideBlock(self.overriding, providers)

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


def _check_mapping(method: str, given: object) -> None:
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ProviderError(f"{method} takes a mapping by token, not {kind}; write {method}({{token: instance}})")


def as_pairs(bindings: object) -> Iterable[tuple[object, object]]:
    """Return the pairs of a result of ``will_bind_providers``, which is a mapping or an iterable of pairs.

    Raises:
        TypeError: the result is neither.
    """
    if isinstance(bindings, Mapping):
        return list(bindings.items())
    with contextlib.suppress(TypeError, ValueError):
        if isinstance(bindings, Iterable):
            return [(token, instance) for token, instance in bindings]
    raise TypeError(f"will_bind_providers returned {type(bindings).__name__}; return a mapping or an iterable of pairs")
