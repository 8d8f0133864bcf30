"""``InvokeContext``: the state of one invocation, as hooks and tools see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from hashlib import sha256
from operator import attrgetter
from typing import Any, NoReturn, cast

from callgate.errors import ControlRespond, Denied, ProviderError, RetryLater, StageError
from callgate.hooks.asking import ask, token_of
from callgate.hooks.facts import Suppressed, Suspension
from callgate.hooks.history import Entry, Kept, input_entries, output_entries
from callgate.hooks.host import Host
from callgate.hooks.instances import instance_made, instance_of
from callgate.hooks.stages import STAGES, May
from callgate.hooks.step import Step
from callgate.providers.ids import new_id
from callgate.providers.logs import emit_suppressed
from callgate.providers.registry import MISSING, ScopeName
from callgate.providers.scope import Scope as ProviderScope
from callgate.tools.approval import Approval
from callgate.tools.calls import Outcome, ToolCall, User
from callgate.tools.definition import ToolDefinition
from callgate.tools.values import hash_of, thaw


class InvokeContext:
    """One invocation (contract 87). Attributes that are not set yet have their defaults on the class: making one is cheap.

    ``data`` is scratch space shared by all hooks of the invocation. ``error`` is what ended it, ``outcome`` how.
    Times are ``started_at``/``finished_at`` (aware datetimes) and ``duration`` in seconds.
    """

    step: Step
    session_id: str | None = None
    failed_in: Step | None = None
    special: bool  # a deadline, an error or a held-back cancellation: something the happy path has not
    deferred: BaseException | None = None
    alarm: Any = None
    hydration: Any = None
    validate_response: bool = True
    outcome: Outcome | None = None
    attempt: int = 1
    tries: int = 0
    depth: int = 0
    executed: bool = False
    cache_hit: bool | None = None
    idempotency_key: str | None = None
    pending: Suspension | None = None
    resumed: Any = None  # the answers that this run of a suspended call was given (runtime/suspensions/resumption.py)
    claim: Any = None  # its place in the effect ledger (runtime/effects/ledger.py)
    replayed: bool = False  # the output, or the error, is that of an earlier call under the same key
    outer: Any = None  # of a nested call: the context that called
    nested: int = 0  # how many calls this one has made
    nth: int = 0  # of a nested call: which of them it is
    asked: dict[str, int] | None = None  # how often somebody was asked, by where and what
    pending_release: bool = False
    abandoned: bool = False
    unknown: BaseException | None = None  # what says that there is no such tool
    finished: float | None = None
    deadline_at: float | None = None
    parse_rules: tuple[str, ...] = ()
    events: Any = None
    trace: list[Any] | None = None
    scrubber: Any = None  # providers/scrubbing.py; what no record of this invocation may show
    _maskers: tuple[Any, ...] = ()

    _input_state: int = 1  # 0 parsed and live, 1 raw, 2 frozen
    _input_view: Any = MISSING
    _masked: Any = MISSING
    _output: Any = None
    _output_json: bytes | None = None
    _input_log: list[Kept] | None = None
    _output_log: list[Kept] | None = None
    _call: ToolCall | None = None
    _request_id: str | None = None
    _scope: ProviderScope | None = None
    _ends_scope: bool = True  # False: another call's, or kept for a body that was left behind
    _suppressed: list[Suppressed] | None = None
    _hooks: dict[Any, Any] | None = None
    _cancelling: bool = False

    def __init__(self, plan: Any, arguments: Any, user: User, started: float) -> None:
        # Few stores: this runs at every call. What is rarely set lives on the class until it is.
        self.plan = plan
        self.raw_input = self._input = arguments
        self.user = user
        self.started = started
        self.special = False
        self.leases: Any = None
        self._error: BaseException | None = None
        self.data: dict[Any, Any] = {}

    # ------------------------------------------------------------------ identity

    # Getters in C: hooks read these at every call, and a Python function would cost several times as much.
    host: Host = cast("Host", property(attrgetter("plan.host"), doc="The engine that runs this invocation."))
    tool: ToolDefinition = cast("ToolDefinition", property(attrgetter("plan.definition"), doc="What was called."))
    tool_id: str = cast("str", property(attrgetter("plan.definition.name"), doc="The wire name of the tool."))
    tool_name: str = cast("str", property(attrgetter("plan.record.name"), doc="The tool's name for people."))
    tenant: str | None = cast("str | None", property(attrgetter("user.tenant"), doc="The user's tenant."))
    fencing_token: int | None = cast("int | None", property(token_of, doc="See ``ToolContext``."))

    @property
    def request_id(self) -> str:
        """The caller's request id, or one made for this invocation; also its correlation id."""
        if self._request_id is None:
            self._request_id = new_id()
        return self._request_id

    @property
    def tool_call(self) -> ToolCall:
        """What was asked for; made on demand when the caller gave bare arguments."""
        if self._call is None:
            self._call = ToolCall(f"call_{self.request_id}", self.tool_id, self.raw_input, synthetic_id=True)
        return self._call

    # ------------------------------------------------------------------ input and output

    @property
    def input(self) -> Any:
        """Raw before ``will_parse_input`` ends, then the parsed object, then a copy of the frozen one.

        Raises:
            StageError: set where the stage may not, or once frozen (from ``will_authorize_input`` on).
        """
        if self._input_state:
            if self._input_state == 1:
                if self._input is self.hydration or self._input is self._call:  # a stand-in, see Gate.call
                    return self.raw_input
                if self._input is self.raw_input and isinstance(self._input, Mapping):
                    self._input = thaw(dict(self._input))  # the caller's object is not ours to change
                return self._input
            if self._input_view is MISSING:
                self._input_view = thaw(self._input)
            return self._input_view
        return self._input

    @input.setter
    def input(self, value: Any) -> None:
        if self._input_state == 2:
            raise StageError(
                "ctx.input is frozen from will_authorize_input on: what was authorised is what runs. "
                "Change it in will_normalize_input, or write ctx.masked_input for what logs may see"
            )
        self._need(May.INPUT, "set ctx.input")
        self._input = value
        self._input_log = [*(self._input_log or ()), Kept(self, value)]

    @property
    def masked_input(self) -> Any:
        """What logs, audit, spans and histories may show of the arguments; a copy of ``input`` until a hook sets it."""
        shown = self._masked
        if shown is MISSING:
            shown = self.input
            for mask in self._maskers:  # those of a call that ended before its input was masked
                shown = mask(shown)
        return shown if self.scrubber is None else self.scrubber.value(shown)

    @masked_input.setter
    def masked_input(self, value: Any) -> None:
        self._need(May.MASK, "set ctx.masked_input")
        self._masked = value

    @property
    def input_hash(self) -> str:
        """SHA-256 of the canonical JSON of the arguments, or of the raw text before it is parsed; made when asked for."""
        value = self.input if self._input_state == 1 else self._input
        if isinstance(value, str):
            return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return hash_of(value)

    def _set_output(self, value: Any) -> None:
        self._need(May.OUTPUT, "set ctx.output")
        self._output = value
        self._output_log = [*(self._output_log or ()), Kept(self, value)]

    def mask_output(self, value: Any) -> None:
        """Put a masked output in the place of the output, and of all that its history would show."""
        self._need(May.OUTPUT, "mask the output")
        self._output, self._output_json, self._output_log = value, None, None

    def _set_error(self, error: BaseException | None) -> None:
        self._need(May.REPLACE_ERROR, "set ctx.error")
        self._error = error

    error: Any = property(
        attrgetter("_error"),
        _set_error,
        doc="What ended the invocation; ``on_error`` may put another in its place (C18).",
    )

    output: Any = property(
        attrgetter("_output"),
        _set_output,
        doc="What the tool returned or a hook responded, as JSON; hooks of the output stages may set it.",
    )

    def take(self, response: ControlRespond) -> None:
        """A response becomes the output (contract 99)."""
        self._output, self.validate_response = response.value, response.validate
        self._output_log = [*(self._output_log or ()), Kept(self, response.value)]

    @property
    def input_history(self) -> tuple[Entry, ...]:
        """Every value ``input`` had, the raw one first; snapshots (contract C27)."""
        return input_entries(self)

    @property
    def output_history(self) -> tuple[Entry, ...]:
        """Every value ``output`` had; snapshots."""
        return output_entries(self)

    # ------------------------------------------------------------------ time

    @property
    def started_at(self) -> datetime:
        """When the invocation began."""
        return datetime.fromtimestamp(self.started + self.host.wall_offset, UTC)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended; set before ``on_metrics`` (contract C35)."""
        return None if self.finished is None else datetime.fromtimestamp(self.finished + self.host.wall_offset, UTC)

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None while it runs."""
        return None if self.finished is None else self.finished - self.started

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if self.deadline_at is None else max(0.0, self.deadline_at - self.host.monotonic())

    # ------------------------------------------------------------------ providers

    @property
    def scope(self) -> ProviderScope:
        """The scope of this invocation and those nested in it: what is made in it is closed as the invocation ends."""
        if self._scope is None:
            self._scope = self.host.registry.request(self.session_id, (self.user.tenant, self.user.id))
        return self._scope

    @property
    def session(self) -> MutableMapping[Any, Any]:
        """What is bound in the session, mutable; without a session id, a map of this invocation alone.

        Raises:
            Denied: the session belongs to another user.
        """
        return self.scope.session(True).bindings

    def get(self, token: Any) -> Any:
        """The provider for a token: request, then session, then global (contract 85).

        Raises:
            ProviderMissing: none of the three has it.
            ProviderError: making it has to wait; ``await ctx.resolve(token)``.
        """
        return self.scope.take(self.host.registry.recipes.of(token))

    def try_get(self, token: Any, default: Any = None) -> Any:
        """Like ``get``, but *default* when missing; errors of a factory are not hidden (contract C25)."""
        recipe = self.host.registry.recipes.of(token)
        if not recipe.is_provided and self.scope.peek(recipe) is MISSING:
            return default
        return self.scope.take(recipe)

    async def resolve(self, token: Any) -> Any:
        """Like ``get``, for a provider that is made asynchronously.

        Raises:
            ProviderMissing: none of the three scopes has it.
        """
        return await self.scope.provide(self.host.registry.recipes.of(token))

    def bind_provider(self, token: Any, instance: Any, scope: ScopeName = "request") -> None:
        """Provide an instance to the rest of this invocation, or of the session (contract 86).

        Raises:
            ProviderError: the global scope cannot be changed while invoking.
            StageError: this stage may not bind.
        """
        self.bind_providers([(token, instance)], scope)

    def bind_providers(self, bindings: Iterable[tuple[Any, Any]], scope: ScopeName = "request") -> None:
        """``bind_provider`` for several pairs."""
        if scope == "global":
            raise ProviderError(
                "the global scope cannot be changed while invoking; give it to the gate: Gate(provide={...})"
            )
        if scope not in ("request", "session"):
            raise ProviderError(f"no scope {scope!r}; scopes: request, session")
        self._need(May.BIND, "bind providers")
        bound = self.session if scope == "session" else self.scope.bindings
        bound.update(self.host.registry.keyed(bindings))

    # ------------------------------------------------------------------ control

    def respond(self, value: Any, *, validate: bool = True) -> NoReturn:
        """End here with this output: go to the post stages (contract 88, 99).

        ``validate=False`` skips the output schema, for a challenge that is no result; it is recorded (C17).
        """
        raise ControlRespond(value, validate=validate)

    def abort(
        self, reason: str = "", code: str | None = None, http_status: int | None = None, *, public: str | None = None
    ) -> NoReturn:
        """Deny the call (contract 88); from a body: nothing was done. *reason* is for logs, *public* for the model."""
        raise Denied(reason, public=public, code=code, http_status=http_status, no_effect=True)

    def retry_after(self, ms: int, reason: str = "", *, public: str | None = None) -> NoReturn:
        """Not now; try again in *ms* milliseconds (contract 88). In a tool's body it says that nothing was done."""
        raise RetryLater(ms, reason, public=public, no_effect=True)

    def suspend(
        self,
        kind: str,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        expires: float | None = None,
        by: Approval | None = None,
    ) -> Any:
        """Give capacity back and wait for a person or a client (design 7).

        A resumed call starts from the top, and what raised here returns the answer: None for an approval, else a JSON
        value that fits *schema*. So ask in an order that does not depend on chance. *prompt* is for whoever answers,
        *expires* in seconds. *by* says who may: without it the caller, or, for an approval, anybody else of its tenant.

        Raises:
            StageError: later than ``will_authorize_input``; in a tool's body unless it is ``resumable``.
        """
        if not (self.step is self.plan.running and self.plan.record.resumable):
            self._need(May.SUSPEND, "suspend")
        return ask(self, kind, prompt, schema, expires, by)

    async def lease(self, manager: AbstractAsyncContextManager[Any]) -> Any:
        """Enter *manager* now; the runtime exits it exactly once, after the records, on every path.

        Raises:
            StageError: in a closing or error stage.
        """
        self._need(May.LEASE, "take a lease")
        return await self.host.lease(self, manager)

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell whoever streams this call how far it is; free when nobody does."""
        if self.events is not None:
            if message is not None and self.scrubber is not None:
                message = self.scrubber.text(message)
            self.events.progress(self, progress, total, message)

    async def send(self, partial: Any) -> None:
        """Send part of the output to whoever streams this call, redacted and checked like the whole."""
        if self.events is not None:
            await self.host.send(self, partial)

    async def call(self, tool: Any, arguments: Any = None) -> Any:
        """Call another tool through the same gate: same user, deadline and request providers (design 4)."""
        return await self.host.nested(self, tool, arguments)

    # ------------------------------------------------------------------ records

    @property
    def suppressed(self) -> tuple[Suppressed, ...]:
        """Failures that were recorded and changed nothing (contract C1c)."""
        return tuple(self._suppressed or ())

    cleanup_errors = suppressed

    def hold_back(self, cancelled: BaseException) -> None:
        """Keep a cancellation that arrived while a step had to be finished; it is raised when that is done."""
        self.deferred = cancelled
        self.special = True

    def suppress(self, error: BaseException) -> None:
        """Record a failure of the current step without changing the outcome."""
        error = error if self.scrubber is None else self.scrubber.error(error)
        self._suppressed = [*(self._suppressed or ()), Suppressed(self.step.stage, self.step.name, error)]
        emit_suppressed(self, error)

    def hook(self, cls: Any) -> Any:
        """The one instance of a hook class in this invocation (contract C1f)."""
        return instance_of(self, cls)

    async def hook_made(self, cls: Any) -> Any:
        """``hook``, for a class whose constructor has dependencies that are made asynchronously."""
        return await instance_made(self, cls)

    def _need(self, power: May, deed: str) -> None:
        if self.step.shadow:
            raise StageError(f"{self.step.name} runs in shadow mode and may not {deed}")
        if power not in self.step.row.may:
            allowed = ", ".join(row.stage for row in STAGES.values() if power in row.may)
            raise StageError(f"{self.step.stage} may not {deed}; stages that may: {allowed}")
