"""Provider maps: global (fixed once started), one a session, one a request; looked up in the order request, session, global."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from callgate.errors import ProviderError, ProviderMissing

Scope = Literal["request", "session", "global"]
MISSING: Any = object()


class ProviderRegistry:
    """The three scopes (contract 84). The request map is made by each invocation; this holds the other two.

    ``container`` is a dependency-injector container or None; its providers are the last place looked in.
    """

    def __init__(self, container: Any = None) -> None:
        self.container = container
        self._singletons: dict[Any, Any] = {}
        self._promised: set[Any] = set()
        self._sessions: dict[str, dict[Any, Any]] = {}
        self._owners: dict[str, Any] = {}
        self._instance_providers: dict[Any, Any] = {}

    def register_singletons(self, providers: Mapping[Any, Any]) -> None:
        """Add global instances, keyed by token. Raises ``ProviderError`` for a token that is taken."""
        for token, instance in providers.items():
            self._refuse_taken(token)
            self._singletons[token] = instance

    def promise_singletons(self, tokens: Iterable[Any]) -> None:
        """Take tokens whose instances come later, by ``set_singleton``. Raises ``ProviderError`` for one that is taken."""
        for token in tokens:
            self._refuse_taken(token)
            self._promised.add(token)

    def set_singleton(self, token: Any, instance: Any) -> None:
        """Keep a promise."""
        self._singletons[token] = instance

    def withdraw_singleton(self, token: Any) -> None:
        """Take back what ``set_singleton`` gave; the token stays promised."""
        self._singletons.pop(token, None)

    def _refuse_taken(self, token: Any) -> None:
        if token in self._singletons or token in self._promised:
            raise ProviderError(f"a global provider for {describe(token)} is registered already")

    def register_session_providers(self, session_id: str, providers: Mapping[Any, Any]) -> None:
        """Add instances to one session."""
        self.session_map(session_id).update(providers)

    def get_all_singletons(self) -> Mapping[Any, Any]:
        """The global instances, as a read-only live view."""
        return MappingProxyType(self._singletons)

    def session_map(self, session_id: str | None) -> dict[Any, Any]:
        """The mutable map of a session; without an id, a new one that nobody shares (contract C26)."""
        if not session_id:
            return {}
        return self._sessions.setdefault(session_id, {})

    def session_for(self, session_id: str | None, principal: Any, *, make: bool) -> dict[Any, Any] | None:
        """A session's map for one principal; None when there is none yet and *make* is False.

        The first principal that uses a session owns it: an id that somebody else guessed or was told opens nothing (I8).

        Raises:
            ProviderError: the session belongs to another principal.
        """
        if not session_id:
            return {} if make else None
        if self._owners.get(session_id, principal) != principal:
            raise ProviderError("the session belongs to another user")
        if make:
            self._owners[session_id] = principal
            return self.session_map(session_id)
        return self._sessions.get(session_id)

    def end_session(self, session_id: str) -> None:
        """Forget a session's instances."""
        self._sessions.pop(session_id, None)
        self._owners.pop(session_id, None)

    def find_global(self, token: Any, modifier: Any = None) -> Any:
        """The global instance for a token, or ``MISSING``; errors of a lazy factory are not hidden (contract C25)."""
        found = self._singletons.get(token, MISSING)
        if found is not MISSING:
            return found
        provider = self.provider_for(token, modifier)
        return MISSING if provider is None else provider()

    def provider_for(self, token: Any, modifier: Any = None) -> Any:
        """The container's own provider for a marker's token (a provider or a dotted string), or None."""
        if self.container is None:
            return None
        key = (token, modifier)
        found = self._instance_providers.get(key)
        if found is None:
            found = _resolve(self.container, token, modifier)
            if found is not None:  # what is not there is not remembered: tokens may be made up at each call
                self._instance_providers[key] = found
        return found

    def __contains__(self, token: Any) -> bool:
        return token in self._singletons or token in self._promised or self.provider_for(token) is not None


def _resolve(container: Any, token: Any, modifier: Any) -> Any:
    from dependency_injector import errors, providers, wiring

    if not isinstance(token, str | providers.Provider):
        return None
    try:
        return wiring.ProvidersMap(container).resolve_provider(token, modifier)
    except (AttributeError, errors.Error):
        return None


def look_up(
    token: Any,
    request: Mapping[Any, Any] | None,
    session: Mapping[Any, Any] | None,
    registry: Any,
    modifier: Any = None,
) -> Any:
    """Request, then session, then global; ``MISSING`` when nowhere (contract 85). None is a legal instance (C25).

    *modifier* is a marker's, such as ``as_int()``; it applies to what the container gives, not to what was bound.
    """
    if request is not None:
        found = request.get(token, MISSING)
        if found is not MISSING:
            return found
    if session is not None:
        found = session.get(token, MISSING)
        if found is not MISSING:
            return found
    return registry.find_global(token, modifier)


def missing(token: Any) -> ProviderMissing:
    """The error for a token that no scope provides."""
    return ProviderMissing(
        f"no provider for {describe(token)} in request, session or global scope; "
        "bind it in will_bind_providers, or give it to the gate: Gate(provide={...}) or Gate(container=...)"
    )


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


def describe(token: Any) -> str:
    """A token as errors name it."""
    return getattr(token, "__qualname__", None) or repr(token)
