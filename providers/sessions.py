"""Sessions: the shared instances, the owner and the lifetime of each session id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import islice

from callgate.errors import Denied
from callgate.providers.exits import Exit
from callgate.providers.ranks import Rank
from callgate.providers.scope import ProviderScope, World


class Session:
    """One session: its scope, its owner, and the number of calls and ``gate.session`` blocks that use it."""

    __slots__ = ("calls", "ended", "id", "owner", "scope", "used_at", "visits")

    def __init__(self, id: str, scope: ProviderScope, now: float) -> None:
        self.id = id
        self.scope = scope
        self.owner: object = None
        self.calls = 0
        self.visits = 0
        self.ended = False
        self.used_at = now


class SessionTable:
    """The live sessions, least recently used first. The owner None is the application, which may use every session.

    A session ends after *ttl* seconds without use, or as the least recently used one of more than *maximum* sessions, or
    of more than *per_owner* sessions of its owner: ids from outside may be random, and end only sessions of their sender.
    Sessions with a running call do not end. ``on_end`` gets the session id, the reason and the instances to close, on the
    event loop. Tools that run in threads may open sessions, too.
    """

    def __init__(
        self,
        world: World,
        now: Callable[[], float],
        *,
        ttl: float | None = None,
        maximum: int | None = None,
        per_owner: int | None = None,
    ) -> None:
        self.world = world
        self.ttl = ttl
        self.maximum = maximum
        self.per_owner = per_owner
        self.on_end: Callable[[str, str, list[Exit]], None] = lambda *_: None
        self._now = now
        self._live: dict[str, Session] = {}
        self._owned: dict[object, dict[str, Session]] = {}
        self._evicted: list[tuple[str, str, list[Exit]]] = []
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def scopes(self) -> list[ProviderScope]:
        """Return the scopes of the live sessions."""
        with self.lock:
            return [one.scope for one in self._live.values()]

    def find(self, session_id: str | None, owner: object) -> Session | None:
        """Return a live session or None, without marking it as used. An expired session is ended.

        Raises:
            Denied: the session belongs to another principal. The first principal that uses a session id owns it, so a
                guessed or leaked id gives no access.
        """
        session = self._live.get(session_id or "")
        if session is None:
            return None
        if self._is_stale(session):
            self._evict(session.id, "unused")
            return None
        if owner is not None and session.owner is not None and session.owner != owner:
            raise Denied("the session belongs to another user", code="foreign_session")
        return session

    def open(self, session_id: str, owner: object = None) -> Session:
        """Return the session with that id, and create it if needed. *owner* becomes its principal if it has none.

        Raises:
            Denied: the session belongs to another principal.
        """
        with self.lock:
            session = self.find(session_id, owner)
            if session is None:
                session = self._live[session_id] = Session(
                    session_id, ProviderScope(self.world, Rank.SESSION), self._now()
                )
            if session.owner is None:
                session.owner = owner
            self._touch(session)
            self._make_room(session)
            return session

    def enter(self, session_id: str, owner: object = None) -> Session:
        """Open a session for a call. It does not end before the call leaves it."""
        with self.lock:
            session = self.open(session_id, owner)
            session.calls += 1
            return session

    def leave(self, session: Session) -> list[Exit]:
        """End the use of a session by a call. Return the instances to close if it was the last call of an ended session."""
        with self.lock:
            session.calls -= 1
            self._touch(session)
            self._make_room(session)
            self._report_ended()
            return session.scope.end() if session.ended and not session.calls else []

    def end(self, session_id: str) -> list[Exit]:
        """End a session and return the instances to close. The next call with its id begins another session.

        Running calls of the session finish first, and the last of them closes the instances; the result is then empty.
        """
        with self.lock:
            session = self._live.pop(session_id, None)
            if session is None:
                return []
            session.ended = True
            owned = self._owned.get(session.owner, {})
            if owned.pop(session_id, None) is not None and not owned:
                del self._owned[session.owner]
            return [] if session.calls else session.scope.end()

    def sweep(self) -> int:
        """End the sessions that were not used for *ttl* seconds. Return their number."""
        with self.lock:
            stale = [session.id for session in self._live.values() if self._is_stale(session)]
            for session_id in stale:
                self._evict(session_id, "unused")
            self._report_ended()
        return len(stale)

    def end_all(self) -> None:
        """End every session."""
        with self.lock:
            for session_id in list(self._live):
                self._evict(session_id, "closing")
            self._report_ended()

    def _evict(self, session_id: str, reason: str) -> None:
        self._evicted.append((session_id, reason, self.end(session_id)))
        self._report_ended()

    def _report_ended(self) -> None:
        """Call ``on_end`` for ended sessions; from a worker thread only later, when the call leaves on the event loop."""
        if not self._evicted or (any(exits for _, _, exits in self._evicted) and not _is_on_event_loop()):
            return
        evicted, self._evicted = self._evicted, []
        for session_id, reason, exits in evicted:
            self.on_end(session_id, reason, exits)

    def _touch(self, session: Session) -> None:
        session.used_at = self._now()
        if self._live.get(session.id) is session:
            self._live[session.id] = self._live.pop(session.id)  # the most recently used is the last
            if session.owner is not None:
                owned = self._owned.setdefault(session.owner, {})
                owned.pop(session.id, None)
                owned[session.id] = session

    def _is_stale(self, session: Session) -> bool:
        return self.ttl is not None and not session.calls and self._now() - session.used_at > self.ttl

    def _make_room(self, wanted: Session) -> None:
        """End the least recently used sessions until the limits hold, or all others are in use."""
        owned: dict[str, Session] = self._owned.get(wanted.owner, {})
        for sessions, maximum in ((owned, self.per_owner), (self._live, self.maximum)):
            excess = 0 if maximum is None else len(sessions) - maximum
            if excess > 0:
                idle = (one.id for one in sessions.values() if not one.calls and one is not wanted)
                for session_id in list(islice(idle, excess)):
                    self._evict(session_id, "crowded out")


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Membership:
    """The session of one request; the request enters it when it first stores or finds an instance there."""

    __slots__ = ("_has_ended", "_id", "_owner", "_sessions", "entered")

    def __init__(self, sessions: SessionTable, session_id: str, owner: object) -> None:
        self._sessions = sessions
        self._id = session_id
        self._owner = owner
        self._has_ended = False
        self.entered: Session | None = None

    def __call__(self, make: bool) -> ProviderScope | None:
        """Return the scope of the session; None when there is no session yet and *make* is False.

        Raises:
            Denied: the session belongs to another principal.
        """
        if self.entered is None:
            if not make or self._has_ended:
                found = self._sessions.find(self._id, self._owner)
                if found is None or self._has_ended:
                    return None if found is None else found.scope
            with self._sessions.lock:  # nested calls may run in several threads
                if self.entered is None:
                    self.entered = self._sessions.enter(self._id, self._owner)
        return self.entered.scope

    def leave(self) -> list[Exit]:
        """End the request, and return the instances that it has to close."""
        session, self.entered, self._has_ended = self.entered, None, True
        return [] if session is None else self._sessions.leave(session)
