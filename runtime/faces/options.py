"""The options of a ``Gate``, grouped by subject. Durations are seconds; points in time are aware datetimes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from callgate.errors import RegistrationError
from callgate.hooks.facts import OnRepair
from callgate.hooks.unvalidated import NoSchemaPolicy
from callgate.providers.clock import Clock
from callgate.runtime.engine import CLOSING, new_instance
from callgate.tools.limits import DEFAULT_LIMITS, Limits, fault_of_seconds
from callgate.tools.schemas.validation import Engine as ValidatorEngine
from callgate.tools.schemas.validation import Formats, check_formats

Mode: TypeAlias = Literal["production", "development"]
"""``"production"`` refuses to open half-configured; ``"development"`` opens, and reports on stderr."""


def check_time(what: str, value: object, *, least: float | None = None, none: bool = True) -> None:
    """Refuse a setting of a gate that is no time in seconds; see ``fault_of_seconds``.

    Raises:
        RegistrationError: the message names *what*.
    """
    if (fault := fault_of_seconds(value, least=least, none=none)) is not None:
        raise RegistrationError(f"{what} {fault}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions of a gate: ``Gate(sessions=Sessions(ttl=900.0))``.

    Args:
        ttl: seconds after which an unused session ends; None means never.
        maximum: number of sessions that may exist; for a new one the least recently used ends. None means no limit.
    """

    ttl: float | None = 3600.0
    maximum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a gate that few services change: ``Gate(options=Options(lazy=True))``.

    Args:
        namespace: the name of the application, for services that share a database. Nothing that a store keeps for other
            namespaces is ever read, counted, repeated, run, expired or deleted. It is part of idempotency keys and
            signatures, so do not change it while calls are pending.
        migrate: False leaves the tables of a store that is given by its address as they are. The gate then refuses to open
            if they are older than this version. For a service whose role cannot change the schema.
        limits: bounds on the size of arguments and outputs.
        lazy: compile a tool's plan and validators at its first call instead of at start.
        resolve: makes an instance of a hook class, once an invocation.
        validator: the engine for author-written schemas; default: jsonschema-rs.
        clock: source of the time, for tests.
        drain: seconds that ``close()`` waits for calls under way; then it cancels them, and closes the providers.
        closing: seconds that all closing steps of one call may wait together: ``on_error``, records, releases, finals and
            the exits of its providers. Each may take half of what is left. A closing gate has as many seconds for the
            calls that it cancelled, and as many for sessions, providers and the store.
        hard_deadline: True abandons an async body or a hook that does not end within 0.25 s after the deadline of its call.
            It keeps the leases of the call until it ends. For tools and hooks that do not set their own.
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
        RegistrationError: ``drain`` or ``closing`` is below 0, ``hard_deadline`` is no bool, or ``namespace`` is not
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
    hard_deadline: bool = False
    on_repair: OnRepair = "approve"
    no_schema_policy: NoSchemaPolicy | None = None
    formats: Formats | None = None
    dynamic_tools: bool = False
    on_hydration: Callable[[dict[str, Any]], object] | None = None

    def __post_init__(self) -> None:
        for name in ("drain", "closing"):
            check_time(f"Options: {name}", getattr(self, name), least=0.0, none=False)
        if not re.fullmatch(r"[a-z0-9._-]{0,63}", self.namespace):
            raise RegistrationError(
                f"Options: namespace is {self.namespace!r}; give at most 63 of a-z, 0-9, '.', '_' and '-'"
            )
        if not isinstance(self.hard_deadline, bool):
            raise RegistrationError(f"Options: hard_deadline is {self.hard_deadline!r}; write True or False")
        if self.on_repair not in get_args(OnRepair):
            raise ValueError(f'on_repair is {self.on_repair!r}; write "approve", "run" or "refuse"')
        check_formats(self.formats)
