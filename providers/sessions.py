"""Sessions: what calls with one session id share, whose it is, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callgate.errors import ProviderError
from callgate.providers.scope import Exit, Scope, World
from callgate.providers.scoped import Rank


class Session:
    """One session: its scope, its owner, and the calls and ``gate.session`` visits that are using it."""

    __slots__ = ("calls", "id", "over", "owner", "scope", "used_at", "visits")

    def __init__(self, id: str, scope: Scope, now: float) -> None:
        self.id = id
        self.scope = scope
        self.owner: Any = None
        self.calls = 0
        self.visits = 0
        self.over = False
        self.used_at = now


class Sessions:
    """The live sessions, the least recently used first. An *owner* of None is the application itself: all are open to it.

    A session that nobody used for *ttl* seconds ends, and so does the least recently used one when there are more than
    *most*; a session that a call is using is spared. What is to be closed then is handed to ``on_end``, with the
    session's id and the reason.
    """

    def __init__(
        self, world: World, now: Callable[[], float], *, ttl: float | None = None, most: int | None = None
    ) -> None:
        self.world = world
        self.ttl = ttl
        self.most = most
        self.on_end: Callable[[str, str, list[Exit]], None] = lambda *_: None
        self._now = now
        self._live: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def find(self, session_id: str | None, owner: Any) -> Session | None:
        """A live session, without using it.

        Raises:
            ProviderError: it belongs to another principal. The first one that uses a session owns it: an id that
                somebody else guessed or was told opens nothing (invariant I8).
        """
        session = self._live.get(session_id or "")
        if session is None:
            return None
        if owner is not None and session.owner is not None and session.owner != owner:
            raise ProviderError("the session belongs to another user")
        if self._is_stale(session):
            self._evict(session.id, "unused")
            return None
        return session

    def open(self, session_id: str, owner: Any = None) -> Session:
        """A session, made if there is none; *owner* is its principal from now on.

        Raises:
            ProviderError: it belongs to another principal.
        """
        session = self.find(session_id, owner)
        if session is None:
            session = self._live[session_id] = Session(session_id, Scope(self.world, Rank.SESSION), self._now())
        else:
            self._live[session_id] = self._live.pop(session_id)  # the most recently used is the last
            session.used_at = self._now()
        if session.owner is None:
            session.owner = owner
        if self.most is not None and len(self._live) > self.most:
            self._make_room(session)
        return session

    def leave(self, session: Session) -> list[Exit]:
        """A call is done with a session; what it has to close, when it was the last one in a session that is over."""
        session.calls -= 1
        session.used_at = self._now()
        return session.scope.end() if session.over and not session.calls else []

    def end(self, session_id: str) -> list[Exit]:
        """End a session; what has to be closed. The next call with its id begins another.

        Calls that are using it may finish; then the last of them closes it, and there is nothing to close here.
        """
        session = self._live.pop(session_id, None)
        if session is None:
            return []
        session.over = True
        return [] if session.calls else session.scope.end()

    def sweep(self) -> int:
        """End sessions that nobody used for their time; how many."""
        stale = [session.id for session in self._live.values() if self._is_stale(session)]
        for session_id in stale:
            self._evict(session_id, "unused")
        return len(stale)

    def end_all(self) -> None:
        """End every session."""
        for session_id in list(self._live):
            self._evict(session_id, "closing")

    def _evict(self, session_id: str, reason: str) -> None:
        self.on_end(session_id, reason, self.end(session_id))

    def _is_stale(self, session: Session) -> bool:
        return self.ttl is not None and not session.calls and self._now() - session.used_at > self.ttl

    def _make_room(self, wanted: Session) -> None:
        oldest = next((one for one in self._live.values() if not one.calls and one is not wanted), None)
        if oldest is not None:
            self._evict(oldest.id, "crowded out")


class Alone:
    """The session of a request that names none: its own, and over with it (contract C26)."""

    __slots__ = ("_scope", "_world")

    def __init__(self, world: World) -> None:
        self._world = world
        self._scope: Scope | None = None

    def __call__(self, make: bool) -> Scope | None:
        """Its scope; None when there is none yet and *make* is False."""
        if self._scope is None and make:
            self._scope = Scope(self._world, Rank.SESSION)
        return self._scope

    def leave(self) -> list[Exit]:
        """The request is over; what has to be closed."""
        return [] if self._scope is None else self._scope.end()


class Membership:
    """A request's way to its session: looked at freely, used from the first time that something is kept there."""

    __slots__ = ("_id", "_owner", "_sessions", "entered")

    def __init__(self, sessions: Sessions, session_id: str, owner: Any) -> None:
        self._sessions = sessions
        self._id = session_id
        self._owner = owner
        self.entered: Session | None = None

    def __call__(self, make: bool) -> Scope | None:
        """The session's scope; None when there is none yet and *make* is False."""
        if self.entered is None:
            if not make:
                seen = self._sessions.find(self._id, self._owner)
                return None if seen is None else seen.scope
            self.entered = self._sessions.open(self._id, self._owner)
            self.entered.calls += 1
        return self.entered.scope

    def leave(self) -> list[Exit]:
        """The request is over; what is left to it to close."""
        session, self.entered = self.entered, None
        return [] if session is None else self._sessions.leave(session)
