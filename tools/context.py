"""What a tool may use of the invocation it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from callgate.providers.principal import User
from callgate.tools.approval import Approval
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition

__all__ = ["ToolContext"]


class ToolContext(Protocol):
    """Annotate a tool's parameter with this, under any name, and the gate supplies it (contract 87, 88; design 10.7).

    The parameter is absent from the tool's schema, and a model that sends it is refused.
    """

    @property
    def tool(self) -> ToolDefinition:
        """The definition of the tool that runs."""
        ...

    @property
    def tool_call(self) -> ToolCall:
        """The call as it came in, with its raw arguments."""
        ...

    @property
    def user(self) -> User:
        """The principal the call runs for."""
        ...

    @property
    def tenant(self) -> str | None:
        """The principal's tenant."""
        ...

    @property
    def session_id(self) -> str | None:
        """The session, if the call belongs to one."""
        ...

    @property
    def request_id(self) -> str:
        """The id of this invocation, in every log line and audit row of it."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first try, 2 for the first retry, and so on (contract 102)."""
        ...

    @property
    def idempotency_key(self) -> str | None:
        """The key of the effect: hand it on to services that take one (design 7).

        It is the caller's own where it gave one, else one that no other tenant, user or tool has. A repeat has the same.
        """
        ...

    @property
    def fencing_token(self) -> int | None:
        """Grows with every claim of the effect: a service that is handed it can refuse an older one. None without one."""
        ...

    def remaining(self) -> float | None:
        """Seconds until the deadline, never below 0; None without a deadline."""
        ...

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell whoever follows ``gate.stream``: ``progress`` of ``total``; never waits and never fails."""
        ...

    async def send(self, partial: Any) -> None:
        """Send a part of the output, a JSON value; redacted and checked like any output."""
        ...

    async def call(self, tool: Any, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call another tool and give its output: same principal, deadline and request scope, limited depth.

        Raises:
            InvocationError: that call ended without a result.
        """
        ...

    def get(self, token: Any) -> Any:
        """What is provided for ``token``: request, then session, then global (contract 85).

        Raises:
            ProviderMissing: nothing is.
        """
        ...

    def try_get(self, token: Any) -> Any | None:
        """Like ``get``, but None where nothing is provided (contract 85, C25)."""
        ...

    def respond(self, value: Any) -> NoReturn:
        """End here with ``value`` as the output; post stages still run (contract 88, 99)."""
        ...

    def abort(self, reason: str, code: str | None = None, http_status: int | None = None) -> NoReturn:
        """End here as denied (contract 88).

        Raises:
            Denied: always.
        """
        ...

    def retry_after(self, ms: int, reason: str = "") -> NoReturn:
        """End here: not now, try again in ``ms`` milliseconds (contract 88).

        Raises:
            RetryLater: always.
        """
        ...

    def suspend(
        self,
        kind: str,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        expires: float | None = None,
        by: Approval | None = None,
    ) -> Any:
        """Wait for a person or a client, such as ``kind="input"``; ``schema`` is of the answer, ``expires`` in seconds.

        The call ends as suspended. When it is resumed it runs again from the top, and this returns the answer. Inside a
        tool's body only where the tool is declared ``resumable`` and has done nothing yet (design 10.13). ``by`` says
        who may answer: without it the caller, or, for ``kind="approval"``, anybody else of its tenant.
        """
        ...
