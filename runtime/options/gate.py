"""The options of a ``Gate``, grouped by subject. Durations are seconds; points in time are aware datetimes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from callgate.errors import RegistrationError
from callgate.hooks.state.facts import OnRepair
from callgate.hooks.state.host import CLOSING, AroundThreads, new_instance
from callgate.providers.clock import Clock
from callgate.providers.kinds import Count, check_fields
from callgate.providers.principal import User
from callgate.runtime.pipeline.no_schema import NoSchemaPolicy
from callgate.tools.limits import DEFAULT_LIMITS, Limits, fault_of_seconds
from callgate.tools.schemas.validation import Engine as ValidatorEngine
from callgate.tools.schemas.validation import Formats, check_formats

Mode: TypeAlias = Literal["production", "development"]
"""``"production"`` refuses to open half-configured; ``"development"`` opens, and reports on stderr."""


RefreshUser: TypeAlias = Callable[[User], User | Awaitable[User | None] | None]
"""Returns the current roles and scopes of a user, who may have changed since the call. None: the user exists no more."""

KEPT = 90 * 86_400.0
"""Seconds that effects and suspended calls are kept, unless the application sets another time."""


def check_time(what: str, value: object, *, least: float | None = None, none: bool = True) -> None:
    """Refuse a setting of a gate that is no time in seconds; see ``fault_of_seconds``.

    Raises:
        RegistrationError: the message names *what*.
    """
    if (fault := fault_of_seconds(value, least=least, none=none)) is not None:
        raise RegistrationError(f"{what} {fault}")


class SessionLimits(TypedDict):
    """The limits of sessions, as keywords of ``ProviderRegistry``."""

    session_ttl: float | None
    max_sessions: int | None
    sessions_per_user: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions of a gate: ``Gate(sessions=Sessions(ttl=900.0))``.

    Args:
        ttl: seconds after which an unused session ends; None means never.
        maximum: number of sessions that may exist; for a new one the least recently used ends. None means no limit.
        per_user: the same for the sessions of one user. A user who sends many ids ends their own sessions only.

    Raises:
        RegistrationError: ``ttl`` is no time in seconds, or a number is below 1.
    """

    ttl: float | None = 3600.0
    maximum: Count | None = 10_000
    per_user: Count | None = 1_000

    def __post_init__(self) -> None:
        check_time("Sessions: ttl", self.ttl)
        check_fields(self, RegistrationError)

    def limits(self) -> SessionLimits:
        """Return the settings as keywords of ``ProviderRegistry``."""
        return {"session_ttl": self.ttl, "max_sessions": self.maximum, "sessions_per_user": self.per_user}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effect ledger of a gate: ``Gate(effects=Effects(lease=60, wait=30))``.

    Args:
        durable: whether effects need a durable store. False accepts a store in memory; None requires a durable store
            in production mode only.
        lease: maximum seconds until a running effect of a dead process becomes ``unknown``.
        wait: seconds that a repeat waits for the first call before it ends as ``in_flight``. An earlier deadline
            shortens the wait.
        keep: seconds that an effect is kept after it ended; its key is free then. A longer ``within`` of a tool counts
            instead. Unknown effects are always kept. None keeps all effects for ever.

    Raises:
        RegistrationError: a time is negative, or ``lease`` or ``keep`` is 0.
    """

    durable: bool | None = None
    lease: float = 60.0
    wait: float = 30.0
    keep: float | None = KEPT

    def __post_init__(self) -> None:
        check_time("Effects: lease", self.lease, none=False)
        check_time("Effects: wait", self.wait, least=0.0, none=False)
        check_time("Effects: keep", self.keep)
        check_fields(self, RegistrationError)

    @property
    def valid(self) -> float:
        """Seconds that a row is leased: less than ``lease``, to leave time for the sweep."""
        return self.lease * 0.6

    @property
    def every(self) -> float:
        """Seconds between two rounds that renew and sweep leases."""
        return self.lease * 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspensions:
    """The suspended calls of a gate: ``Gate(suspensions=Suspensions(policy_version="2026-03"))``.

    Args:
        policy_version: the version of your policies. A suspended call is bound to it and to the hooks that authorise.
        refresh_user: returns the current roles and scopes of a user when a suspended call or a job of theirs runs.
            None from it means that the user exists no more. Default: the user as of the call.
        max_per_user: number of calls of one user that may wait at the same time; a further one ends with ``RetryLater``.
            None means no limit.
        keep: seconds from a call until its record is deleted, if it waits no more. None keeps the records for ever.

    Raises:
        RegistrationError: ``keep`` is not above 0, or a setting is of another type.
    """

    policy_version: str = ""
    refresh_user: RefreshUser | None = None
    keep: float | None = KEPT
    max_per_user: Count | None = 1_000

    def __post_init__(self) -> None:
        check_time("Suspensions: keep", self.keep)
        check_fields(self, RegistrationError)


_WITH_OWN_CHECKS = ("hard_deadline", "around_threads", "on_repair", "formats")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a gate that few services change: ``Gate(options=Options(lazy=True))``.

    Args:
        namespace: the name of the application, for services that share a database. Nothing that a store keeps for other
            namespaces is ever read, counted, repeated, run, expired or deleted. It is part of idempotency keys and
            signatures, so do not change it while calls are pending.
        migrate: False leaves the tables of a store that is given by its address as they are. The gate then refuses to open
            if they are older than this version. For a service whose role cannot change the schema. With True the gate
            migrates them, unless processes of the version before could not go on: ``callgate stores upgrade`` does.
        limits: bounds on the size of arguments and outputs.
        lazy: compile a tool's plan and validators at its first call instead of at start.
        resolve: makes an instance of a hook class, once an invocation.
        validator: the engine for author-written schemas; default: jsonschema-rs.
        clock: source of the time, for tests.
        drain: seconds that ``close()`` waits for calls under way; then it cancels them, and closes the providers. What is
            left of them serves to record outcomes of effects, on a slow server.
        closing: seconds that all closing steps of one call may wait together: ``on_error``, records, releases, finals and
            the exits of its providers. Each may take half of what is left. A closing gate has as many seconds for the
            calls that it cancelled, and as many for sessions, providers and the store.
        idle: seconds for which a call may report no progress; see ``CallOptions``. For tools that do not set their own.
        hard_deadline: True abandons an async body or a hook that does not end within 0.25 s after the deadline of its call.
            It keeps the leases of the call until it ends. For tools and hooks that do not set their own.
        around_threads: a function that returns a context manager. A worker thread enters it for the plain code of each
            attempt. ``"auto"`` closes the connections that Django can no longer use, where the application has Django; None
            does nothing.
        on_repair: what happens to a call whose arguments a repairer wrote: ``"approve"``, it waits until a person
            approves the repaired arguments; ``"run"``; or ``"refuse"``.
        no_schema_policy: a function, plain or async, of a tool without a schema and the user. It returns the
            ``NoSchemaMode`` that holds for the call, an ``Approval`` that the call then needs, or None to deny it. Default:
            the mode that the tool declares.
        formats: whether ``format`` in a schema restricts values: ``"assert"``, ``"annotate"``, or one of both by the name
            of the dialect, such as ``{"2020-12": "annotate"}``. Default: schemas of the author assert, schemas from outside
            follow their dialect (drafts 4 to 7 assert). A tool with ``formats`` of its own keeps it.
        dynamic_tools: True for a gate whose tools come and go, such as those of ``gate.mount``. A rule that names a tool
            which is not registered is then logged when the gate opens, and holds once the tool comes. Else it is refused.
        on_hydration: a plain function of the record of each hydration attempt, also of unknown tools and of repairs: a dict
            with the masked payload, the wire, the digests, the validator and the errors. Write it to a log of your own.

    Raises:
        DefinitionError: ``formats`` has another value.
        RegistrationError: ``drain`` or ``closing`` is below 0, ``idle`` is no time in seconds, ``hard_deadline`` is no bool, ``around_threads`` no function, or ``namespace`` is not
            ``a-z``, ``0-9``, ``.``, ``_`` and ``-``, at most 63 of them.
        ValueError: ``on_repair`` has another value.
    """

    namespace: str = ""
    migrate: bool = True
    limits: Limits = DEFAULT_LIMITS
    lazy: bool = False
    resolve: Callable[[Any], object] = new_instance
    validator: ValidatorEngine | None = None
    clock: Clock | None = None
    drain: float = 10.0
    closing: float = CLOSING
    idle: float | None = None
    hard_deadline: bool = False
    around_threads: AroundThreads = "auto"
    on_repair: OnRepair = "approve"
    no_schema_policy: NoSchemaPolicy | None = None
    formats: Formats | None = None
    dynamic_tools: bool = False
    on_hydration: Callable[[dict[str, Any]], object] | None = None

    def __post_init__(self) -> None:
        for name in ("drain", "closing"):
            check_time(f"Options: {name}", getattr(self, name), least=0.0, none=False)
        check_time("Options: idle", self.idle)
        check_fields(self, RegistrationError, skip=_WITH_OWN_CHECKS)
        if not re.fullmatch(r"[a-z0-9._-]{0,63}", self.namespace):
            raise RegistrationError(
                f"Options: namespace is {self.namespace!r}; give at most 63 of a-z, 0-9, '.', '_' and '-'"
            )
        if not isinstance(self.hard_deadline, bool):
            raise RegistrationError(f"Options: hard_deadline is {self.hard_deadline!r}; write True or False")
        if not (self.around_threads in {None, "auto"} or callable(self.around_threads)):
            raise RegistrationError(
                "Options: around_threads is a function that returns a context manager; write "
                "around_threads=my_connections, None, or leave it out"
            )
        if self.on_repair not in get_args(OnRepair):
            raise ValueError(f'on_repair is {self.on_repair!r}; write "approve", "run" or "refuse"')
        check_formats(self.formats)
