"""The members of a call that its logs show. The call itself, ``InvokeContext``, lies above this layer."""

from __future__ import annotations

from typing import Any, Protocol

from callgate.providers.principal import User
from callgate.providers.scrubbing import Scrubber


class _Row(Protocol):
    @property
    def gives_back(self) -> str | None: ...


class _Step(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def row(self) -> _Row: ...

    name: str
    hook: Any
    shadow: bool


class _Definition(Protocol):
    @property
    def parameters(self) -> object: ...


class _Rules(Protocol):
    def mode_of(self, verdict: Any, /) -> object: ...


class _Checks(Protocol):
    @property
    def unvalidated(self) -> _Rules | None: ...


class _Host(Protocol):
    development: bool


class _Plan(Protocol):
    @property
    def definition(self) -> _Definition: ...
    @property
    def builtins(self) -> _Checks: ...
    @property
    def host(self) -> _Host: ...


class _ToolCall(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


class LoggedRun(Protocol):
    """The state of a call."""

    scrubber: Scrubber | None
    raw_input: Any
    input: Any
    session_id: str | None
    unknown: BaseException | None

    @property
    def plan(self) -> _Plan:
        """The plan of the tool."""
        ...

    @property
    def step(self) -> _Step:
        """The step that runs."""
        ...

    @property
    def outer(self) -> LoggedRun | None:
        """The state of the call that made this one."""
        ...

    @property
    def tool_call(self) -> _ToolCall | None:
        """The call as the caller made it."""
        ...

    @property
    def no_schema(self) -> object:
        """The mode that the policy decided for a call without a schema."""
        ...


class LoggedCall(Protocol):
    """One call: ``InvokeContext``."""

    @property
    def run(self) -> LoggedRun:
        """The state of the call."""
        ...

    @property
    def user(self) -> User:
        """The principal."""
        ...

    @property
    def tool_id(self) -> str:
        """The wire name of the tool."""
        ...

    @property
    def request_id(self) -> str:
        """The correlation id."""
        ...
