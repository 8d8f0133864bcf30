"""Sessions: what calls with one session id share, whose it is, and when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from callgate.errors import Denied
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
    session's id and the reason, on the event loop. Tools that run in threads may open sessions, too.
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
        self._over: list[tuple[str, str, list[Exit]]] = []
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def find(self, session_id: str | None, owner: Any) -> Session | None:
        """A live session, without using it. One whose time is over is nobody's any more.

        Raises:
            Denied: it belongs to another principal. The first one that uses a session owns it: an id that
                somebody else guessed or was told opens nothing (invariant I8).
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

    def open(self, session_id: str, owner: Any = None) -> Session:
        """A session, made if there is none; *owner* is its principal from now on.

        Raises:
            Denied: it belongs to another principal.
        """
        with self.lock:
            session = self.find(session_id, owner)
            if session is None:
                session = self._live[session_id] = Session(session_id, Scope(self.world, Rank.SESSION), self._now())
            self._touch(session)
            if session.owner is None:
                session.owner = owner
            self._make_room(session)
            return session

    def enter(self, session_id: str, owner: Any = None) -> Session:
        """``open`` for a call, which keeps it from being ended until it says ``leave``."""
        with self.lock:
            session = self.open(session_id, owner)
            session.calls += 1
            return session

    def leave(self, session: Session) -> list[Exit]:
        """A call is done with a session; what it has to close, when it was the last one in a session that is over."""
        with self.lock:
            session.calls -= 1
            self._touch(session)
            self._make_room(session)
            self._hand_over()
            return session.scope.end() if session.over and not session.calls else []

    def end(self, session_id: str) -> list[Exit]:
        """End a session; what has to be closed. The next call with its id begins another.

        Calls that are using it may finish; then the last of them closes it, and there is nothing to close here.
        """
        with self.lock:
            session = self._live.pop(session_id, None)
            if session is None:
                return []
            session.over = True
            return [] if session.calls else session.scope.end()

    def sweep(self) -> int:
        """End sessions that nobody used for their time; how many."""
        with self.lock:
            stale = [session.id for session in self._live.values() if self._is_stale(session)]
            for session_id in stale:
                self._evict(session_id, "unused")
            self._hand_over()
        return len(stale)

    def end_all(self) -> None:
        """End every session."""
        with self.lock:
            for session_id in list(self._live):
                self._evict(session_id, "closing")
            self._hand_over()

    def _evict(self, session_id: str, reason: str) -> None:
        self._over.append((session_id, reason, self.end(session_id)))
        self._hand_over()

    def _hand_over(self) -> None:
        """Not from a worker thread: nothing can be awaited there. The call that runs in it leaves on the event loop."""
        if not self._over or (any(exits for _, _, exits in self._over) and not _is_on_event_loop()):
            return
        over, self._over = self._over, []
        for session_id, reason, exits in over:
            self.on_end(session_id, reason, exits)

    def _touch(self, session: Session) -> None:
        session.used_at = self._now()
        if self._live.get(session.id) is session:
            self._live[session.id] = self._live.pop(session.id)  # the most recently used is the last

    def _is_stale(self, session: Session) -> bool:
        return self.ttl is not None and not session.calls and self._now() - session.used_at > self.ttl

    def _make_room(self, wanted: Session) -> None:
        """End the least recently used ones until no more than ``most`` are left, or all others are in use."""
        if self.most is None or len(self._live) <= self.most:
            return
        idle = [one.id for one in self._live.values() if not one.calls and one is not wanted]
        for session_id in idle[: len(self._live) - self.most]:
            self._evict(session_id, "crowded out")


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Membership:
    """A request's way to its session: used from the first time that something is kept there, or is there to be seen."""

    __slots__ = ("_id", "_is_over", "_owner", "_sessions", "entered")

    def __init__(self, sessions: Sessions, session_id: str, owner: Any) -> None:
        self._sessions = sessions
        self._id = session_id
        self._owner = owner
        self._is_over = False
        self.entered: Session | None = None

    def __call__(self, make: bool) -> Scope | None:
        """The session's scope; None when there is none yet and *make* is False.

        Raises:
            Denied: the session belongs to another principal.
        """
        if self.entered is None:
            if not make or self._is_over:
                seen = self._sessions.find(self._id, self._owner)
                if seen is None or self._is_over:
                    return None if seen is None else seen.scope
            with self._sessions.lock:  # calls that are nested in one may ask in several threads
                if self.entered is None:
                    self.entered = self._sessions.enter(self._id, self._owner)
        return self.entered.scope

    def leave(self) -> list[Exit]:
        """The request is over; what is left to it to close."""
        session, self.entered, self._is_over = self.entered, None, True
        return [] if session is None else self._sessions.leave(session)
