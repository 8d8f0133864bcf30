"""``ToolContext``: the view of an invocation that a tool receives."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, NoReturn, Protocol

from callgate.providers.logs import CallLog
from callgate.providers.principal import User
from callgate.tools.approval import Approval, Question
from callgate.tools.calls import ToolCall
from callgate.tools.definition import ToolDefinition


class ToolContext(Protocol):
    """The context of a tool's invocation. The gate supplies it to a parameter with this annotation, under any name.

    The parameter is absent from the tool's schema, and a call in which the model sends it is refused.
    """

    @property
    def tool(self) -> ToolDefinition:
        """The definition of the running tool."""
        ...

    @property
    def tool_id(self) -> str:
        """The wire name of the tool."""
        ...

    @property
    def tool_name(self) -> str:
        """The tool's name for people."""
        ...

    @property
    def input(self) -> Any:
        """The validated arguments, as an immutable view."""
        ...

    @property
    def data(self) -> MutableMapping[Any, Any]:
        """Scratch space of this invocation, shared with its hooks."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The error that ended the invocation; None while the tool runs."""
        ...

    @property
    def started_at(self) -> datetime:
        """The start of the invocation, with its time zone."""
        ...

    @property
    def tool_call(self) -> ToolCall:
        """The received call, with its raw arguments."""
        ...

    @property
    def user(self) -> User:
        """The principal of the call."""
        ...

    @property
    def user_id(self) -> str:
        """The id of the principal."""
        ...

    @property
    def tenant(self) -> str | None:
        """The principal's tenant."""
        ...

    @property
    def session_id(self) -> str | None:
        """The session; None for a call without one."""
        ...

    @property
    def request_id(self) -> str:
        """The id of this invocation; it is in every log line and audit row of it."""
        ...

    @property
    def thread_id(self) -> str | None:
        """The thread whose plan made the call; None outside a ``ToolSystem``."""
        ...

    @property
    def trace_id(self) -> str:
        """The trace of the plan that made the call; outside a ``ToolSystem`` the ``request_id``."""
        ...

    @property
    def task_id(self) -> str | None:
        """The A2A task that the call belongs to; None outside A2A."""
        ...

    @property
    def context_id(self) -> str | None:
        """The A2A context of that task: the conversation of the client; None outside A2A."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1 for the first, 2 for the first retry."""
        ...

    @property
    def depth(self) -> int:
        """0 for a caller's call, 1 for a call that its tool makes, and so on."""
        ...

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key of the effect; pass it to services that accept idempotency keys.

        It follows the key that the tool declares. Without one it is the key that the caller gave, else a key that is unique
        to tenant, user and tool. A repeat has the same key.
        """
        ...

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the effect, which grows with every claim; None without an effect."""
        ...

    @property
    def session(self) -> MutableMapping[Any, Any]:
        """The bindings of the session; without a session id, a map of this invocation alone.

        Raises:
            Denied: the session belongs to another user.
        """
        ...

    @property
    def log(self) -> CallLog:
        """The logger of the call: each event has the ids of the call, and goes where Callgate's own events go."""
        ...

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a deadline."""
        ...

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to ``gate.stream``: ``progress`` of ``total``. It resets the idle limit. Never waits, never fails."""
        ...

    async def send(self, partial: Any) -> None:
        """Send a part of the output, a JSON value; it is redacted and checked like any output. It resets the idle limit."""
        ...

    async def call(self, tool: Any, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call another tool and return its output: same principal, deadline and request scope, limited depth.

        Raises:
            InvocationError: that call ended without a result.
        """
        ...

    async def lease(self, manager: AbstractAsyncContextManager[Any]) -> Any:
        """Enter *manager* now; the runtime exits it exactly once, on every path, after the body has ended.

        Raises:
            StageError: the call is over.
        """
        ...

    def get(self, token: Any) -> Any:
        """Return the provided object for ``token``: from request, then session, then global scope.

        Raises:
            ProviderMissing: there is no provider for it.
        """
        ...

    def try_get(self, token: Any) -> Any | None:
        """Like ``get``, but None without a provider."""
        ...

    def respond(self, value: object, *, validate: bool = True) -> NoReturn:
        """End the call with ``value`` as the output; post stages still run. ``validate=False`` skips the output schema."""
        ...

    def abort(
        self, reason: str = "", code: str | None = None, http_status: int | None = None, *, public: str | None = None
    ) -> NoReturn:
        """End the call as denied. *reason* goes to logs, *public* to the model.

        Raises:
            Denied: always.
        """
        ...

    def retry_after(self, ms: int, reason: str = "", *, public: str | None = None) -> NoReturn:
        """End the call with the request to retry it in ``ms`` milliseconds.

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
        name: str | None = None,
        questions: Mapping[str, Question] | None = None,
    ) -> Any:
        """Suspend the call until a person or a client responds, and return the response.

        ``kind`` is such as ``"input"``; ``schema`` is the schema of the response, ``expires`` is in seconds. The call ends
        as suspended. When it is resumed, it runs again from the start, and ``suspend`` then returns the response. A tool's
        body may suspend only where the tool is declared ``resumable`` and has had no effect yet. ``by`` names the people who
        may respond. Without it, that is the caller, or, for ``kind="approval"``, any other user of the caller's tenant.
        ``name`` is shown to the client that responds; requests with names may come in any order. ``questions`` asks several
        at once; the response is then a mapping of their names to the answers.
        """
        ...
