"""``InvokeContext``: one invocation as its hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, cast

from callgate.errors import ControlRespond, Denied, ProviderError, RetryLater, StageError
from callgate.hooks.stages import May, Stage
from callgate.hooks.state.asking import ask, token_of
from callgate.hooks.state.facts import FROZEN, Suppressed, Suspension
from callgate.hooks.state.frozen_views import LATER_THAN_INPUT, ProvidersView, masked_view, stages_that_may
from callgate.hooks.state.history import Entry
from callgate.hooks.state.host import CallPlan
from callgate.hooks.state.run import Run, input_entries, output_entries
from callgate.providers.foreign_errors import is_pressed, understood
from callgate.providers.guesses import explain_attributes, explain_camel_case
from callgate.providers.logs import CallLog, emit_suppressed
from callgate.providers.recipe import Recipe
from callgate.providers.registry import MISSING, ScopeName
from callgate.providers.scrubbing import Scrubber
from callgate.tools.approval import Approval, Question
from callgate.tools.calls import Outcome, ToolCall, User
from callgate.tools.definition import ToolDefinition

T = TypeVar("T")


def _shown(read: Callable[[InvokeContext], T], doc: str, change: Callable[[InvokeContext, T], None] | None = None) -> T:
    """Return a property whose type is that of what it reads."""
    return cast("T", property(read, change, doc=doc))


@explain_camel_case
@explain_attributes(
    {
        "args": "ctx.input",
        "arguments": "ctx.input",
        "deny": "ctx.abort(reason)",
        "params": "ctx.input",
        "result": "ctx.output",
        "scratchpad": "ctx.data",
        "state": "ctx.data",
        "user_id": "ctx.user.id",
    }
)
class InvokeContext:
    """One invocation, as its hooks see it.

    ``data`` is scratch space that all hooks of the call share. Values are read as deeply immutable views; a hook sets one
    in a stage that the stage table allows. Times are aware datetimes, ``duration`` is in seconds. ``run`` is the state of
    the runtime, which may change with each version.
    """

    __slots__ = ("__weakref__", "data", "run")

    run: Run[InvokeContext]

    def __init__(self, plan: CallPlan[InvokeContext], arguments: object, user: User, started: float) -> None:
        self.run = Run(plan, arguments, user, started)
        self.data: MutableMapping[Any, Any] = {}
        if user.token is not None:
            Scrubber.of(self).add_token(user.token)

    # ------------------------------------------------------------------ identity

    tool: ToolDefinition = _shown(lambda ctx: ctx.run.plan.definition, "The tool's definition.")
    tool_id: str = _shown(lambda ctx: ctx.run.plan.tool_id, "The wire name of the tool.")
    tool_name: str = _shown(lambda ctx: ctx.run.plan.record.name, "The tool's name for people.")

    def _set_user(self, _: User) -> None:
        raise StageError("ctx.user is fixed for the call; authenticate before it, and write gate.call(..., user=user)")

    user: User = _shown(lambda ctx: ctx.run.user, "The principal; fixed for the call.", _set_user)
    tenant: str | None = _shown(lambda ctx: ctx.run.user.tenant, "The user's tenant.")
    session_id: str | None = _shown(lambda ctx: ctx.run.session_id, "The session of the call.")
    task_id: str | None = _shown(lambda ctx: ctx.run.task.task_id, "The A2A task, if any.")
    context_id: str | None = _shown(lambda ctx: ctx.run.task.context_id, "The task's context.")
    idempotency_key: str | None = _shown(lambda ctx: ctx.run.idempotency_key, "The key of the effect.")
    fencing_token: int | None = _shown(token_of, "See ``ToolContext``.")
    stage: Stage = _shown(lambda ctx: ctx.run.step.stage, "The stage that runs.")
    attempt: int = _shown(lambda ctx: ctx.run.attempt, "1 for the first attempt, 2 for the first retry.")
    depth: int = _shown(lambda ctx: ctx.run.depth, "0 for a caller's call, 1 for a nested call of it.")
    outcome: Outcome | None = _shown(lambda ctx: ctx.run.outcome, "The outcome, once the call has one.")
    executed: bool = _shown(lambda ctx: ctx.run.executed, "Whether the tool's body has returned.")
    replayed: bool = _shown(lambda ctx: ctx.run.replayed, "Whether an earlier call with the key ran it.")
    pending: Suspension | None = _shown(lambda ctx: ctx.run.pending, "The suspension that ended the call, if one did.")
    raw_input: Any = _shown(
        lambda ctx: ctx.run.show_raw() if (shown := ctx.run.shown_raw) is MISSING else shown,
        "The caller's arguments, text or object, as an immutable view.",
    )
    request_id: str = _shown(
        lambda ctx: ctx.run.known_request_id, "The caller's, or a new one; also the correlation id."
    )

    @property
    def tool_call(self) -> ToolCall:
        """The call as the caller made it, with raw arguments as an immutable view."""
        return self.run.call_view()

    # ------------------------------------------------------------------ input and output

    def _set_input(self, value: object) -> None:
        if self.run.input_state == FROZEN:
            raise StageError(
                "ctx.input is frozen from will_authorize_input on: what was authorised is what runs. "
                "Change it in will_normalize_input, or write ctx.masked_input for what logs may see"
                + LATER_THAN_INPUT.get(self.run.step.stage, "")
            )
        self._need(May.INPUT, "set ctx.input")
        self.run.put_input(value)

    input: Any = _shown(
        lambda ctx: ctx.run.show_input() if (shown := ctx.run.shown_input) is MISSING else shown,
        """The parsed arguments, as an immutable view; a hook sets a new value up to ``will_normalize_input``.

        Before the arguments are parsed it holds only a value that a hook has set; ``raw_input`` has the caller's.

        Raises:
            StageError: the arguments are not parsed yet; or a hook sets a value in a stage that may not set it, or
                after the freeze.
        """,
        _set_input,
    )

    @property
    def masked_input(self) -> Any:
        """The arguments that logs, audit rows, spans and histories may show; a copy of ``input`` until a hook sets it."""
        return self.run.masked_view()

    @masked_input.setter
    def masked_input(self, value: object) -> None:
        self._need(May.MASK, "set ctx.masked_input")
        self.run.masked, self.run.masked_by = masked_view(value), (self.run.plan.now(), self.run.step)

    @property
    def input_hash(self) -> str:
        """SHA-256 of the canonical JSON of the arguments, or of the raw text before it is parsed."""
        return self.run.hash_of_input()

    def _set_output(self, value: object) -> None:
        self._need(May.OUTPUT, "set ctx.output")
        self.run.put_output(value)

    output: Any = _shown(
        lambda ctx: ctx.run.show_output() if (shown := ctx.run.shown_output) is MISSING else shown,
        "The tool's output, or a hook's response, as an immutable view; hooks of the output stages may set it.",
        _set_output,
    )

    def mask_output(self, value: object) -> None:
        """Replace the output, and every output in the history, by a masked value."""
        self._need(May.OUTPUT, "mask the output")
        self.run.output_log = []
        self.run.put_output(value)

    @property
    def cache_hit(self) -> bool | None:
        """True or False after a hook has read a cache, else None; a hook of ``will_read_cache`` may set it."""
        return self.run.cache_hit

    @cache_hit.setter
    def cache_hit(self, value: bool | None) -> None:
        if self.run.step.stage is not Stage.WILL_READ_CACHE:
            raise StageError(f"{self.run.step.stage} may not set ctx.cache_hit; will_read_cache may")
        self.run.cache_hit = value

    def _set_error(self, error: BaseException | None) -> None:
        self._need(May.REPLACE_ERROR, "set ctx.error")
        self.run.error = error

    error: Any = _shown(
        lambda ctx: ctx.run.error, "The error that ended the invocation; ``on_error`` may replace it.", _set_error
    )

    @property
    def input_history(self) -> tuple[Entry, ...]:
        """Snapshots of every value of ``input``, the raw one first."""
        return input_entries(self)

    @property
    def output_history(self) -> tuple[Entry, ...]:
        """Snapshots of every value of ``output``."""
        return output_entries(self)

    # ------------------------------------------------------------------ time

    @property
    def started_at(self) -> datetime:
        """The start of the invocation."""
        return self._wall(self.run.started)

    @property
    def finished_at(self) -> datetime | None:
        """The end of the invocation; set before ``on_metrics``."""
        return None if self.run.finished is None else self._wall(self.run.finished)

    def _wall(self, monotonic: float) -> datetime:
        return datetime.fromtimestamp(monotonic + self.run.plan.host.clock.offset, UTC)

    @property
    def duration(self) -> float | None:
        """Seconds from start to end; None while the invocation runs."""
        return None if self.run.finished is None else self.run.finished - self.run.started

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a deadline."""
        at = self.run.deadline_at
        return None if at is None else max(0.0, at - self.run.plan.host.monotonic())

    # ------------------------------------------------------------------ providers

    @property
    def providers(self) -> Mapping[Any, Any]:
        """The providers of the call as a read-only mapping, looked up as in ``get``; ``bind_provider`` adds one."""
        return ProvidersView(self, self.run.request_scope(), self.run.plan.host.registry, {})

    @property
    def session(self) -> MutableMapping[Any, Any]:
        """The bindings of the session. Without a session id, the mapping belongs to this invocation alone.

        Raises:
            Denied: the session belongs to another user.
        """
        return self.run.request_scope().session(True).bindings

    def get(self, token: object) -> Any:
        """Return the provider for a token; search the execution, request, session and global scopes in this order.

        Raises:
            ProviderMissing: no scope has the token.
            ProviderError: the factory is asynchronous; use ``await ctx.resolve(token)``.
        """
        return self.run.innermost_scope().take(self._recipe(token))

    def try_get(self, token: object, default: object = None) -> Any:
        """Return the provider for a token, or *default* if no scope has it; errors of a factory are raised."""
        recipe, scope = self._recipe(token), self.run.innermost_scope()
        if not recipe.is_provided and scope.peek(recipe) is MISSING:
            return default
        return scope.take(recipe)

    async def resolve(self, token: object) -> Any:
        """Return the provider for a token whose factory is asynchronous.

        Raises:
            ProviderMissing: no scope has the token.
        """
        return await self.run.innermost_scope().provide(self._recipe(token))

    def _recipe(self, token: object) -> Recipe:
        return self.run.plan.host.registry.recipes.of(token)

    def bind_provider(self, token: object, instance: object, scope: ScopeName = "request") -> None:
        """Bind an instance for the rest of this invocation, or of the session.

        Raises:
            ProviderError: the global scope cannot change during a call, or the call is over.
            StageError: this stage may not bind.
        """
        self.bind_providers([(token, instance)], scope)

    def bind_providers(self, bindings: Iterable[tuple[object, object]], scope: ScopeName = "request") -> None:
        """Bind several instances, as ``bind_provider`` does."""
        if scope == "global":
            raise ProviderError(
                "the global scope cannot be changed while invoking; give it to the gate: Gate(provide={...})"
            )
        if scope not in ("request", "session"):
            raise ProviderError(f"no scope {scope!r}; scopes: request, session")
        self._need(May.BIND, "bind providers")
        request = self.run.request_scope()
        if request.closed:  # calls that have ended share one scope
            raise ProviderError("the call is over: it binds no more providers")
        bound = self.session if scope == "session" else request.bindings
        bound.update(self.run.plan.host.registry.keyed(bindings))

    # ------------------------------------------------------------------ control

    def respond(self, value: object, *, validate: bool = True) -> NoReturn:
        """End the call here with this output; the post stages still run.

        ``validate=False`` skips the output schema, for a challenge that is not a result; the runtime records it.
        """
        raise ControlRespond(value, validate=validate)

    def abort(
        self, reason: str = "", code: str | None = None, http_status: int | None = None, *, public: str | None = None
    ) -> NoReturn:
        """Deny the call. *reason* goes to logs, *public* to the model.

        In a tool's body, it also states that no effect happened.
        """
        raise Denied(reason, public=public, code=code, http_status=http_status, no_effect=True)

    def retry_after(self, ms: int, reason: str = "", *, public: str | None = None) -> NoReturn:
        """Refuse the call; the caller may retry in *ms* milliseconds.

        In a tool's body, it also states that no effect happened.
        """
        raise RetryLater(ms, reason, public=public, no_effect=True)

    def suspend(
        self,
        kind: str,
        prompt: str,
        *,
        schema: Mapping[str, object] | None = None,
        expires: float | None = None,
        by: Approval | None = None,
        name: str | None = None,
        questions: Mapping[str, Question] | None = None,
    ) -> Any:
        """Suspend the call until a person or a client answers; the runtime releases its capacity.

        A resumed call starts from the top, and this method then returns the answer: None for an approval, else a JSON
        value that fits *schema*. A hook must therefore make its requests in a deterministic order. *prompt* is the
        text for the approver, *expires* is in seconds. *by* names the users who may answer. The default is the caller,
        and for an approval any other user of the caller's tenant. *name* is shown to the client that answers, and replaces
        the number of the request: requests with names may come in any order. *questions* asks several at once, by name:
        the answers may come one by one, and this method returns them as a dict once the last is in.

        Raises:
            ValueError: a name is not 1 to 64 letters, digits, ``_`` and ``-``.
            StageError: the stage is later than ``will_authorize_input``, except in the body of a ``resumable`` tool.
        """
        if not (self.run.step is self.run.plan.running and self.run.plan.record.resumable):
            self._need(May.SUSPEND, "suspend")
        return ask(self, kind, prompt, schema, expires, by, name, questions)

    async def lease(self, manager: AbstractAsyncContextManager[object]) -> Any:
        """Enter *manager* now; the runtime exits it exactly once, after this hook's own records, on every path.

        Raises:
            StageError: the stage is a closing or error stage.
        """
        self._need(May.LEASE, "take a lease")
        if self.run.watch is not None:
            manager = self.run.watch(self, manager)
        return await self.run.plan.host.lease(self, manager)

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the consumer of ``gate.stream``, and reset the idle limit; it costs nothing without both."""
        if self.run.idle is not None:
            self.run.idle.progressed()
        if self.run.events is not None:
            if message is not None and self.run.scrubber is not None:
                message = self.run.scrubber.text(message)
            self.run.events.progress(self, progress, total, message)

    async def send(self, partial: object) -> None:
        """Send part of the output to the consumer of ``gate.stream``, redacted and checked like the whole output."""
        if self.run.idle is not None:
            self.run.idle.progressed()
        if self.run.events is not None:
            await self.run.plan.host.send(self, partial)

    def call(self, tool: object, arguments: object = None) -> Coroutine[object, None, Any]:
        """Call another tool through the same gate, with the same user, deadline and request providers."""
        return self.run.plan.host.nested(self, tool, arguments, self.run.attempt)

    # ------------------------------------------------------------------ records

    @property
    def log(self) -> CallLog:
        """The logger of this call: each event has the ids of the call."""
        return CallLog(self)

    @property
    def suppressed(self) -> tuple[Suppressed, ...]:
        """Failures that were recorded and did not change the outcome."""
        return tuple(self.run.suppressed or ())

    cleanup_errors = suppressed

    def suppress(self, error: BaseException) -> None:
        """Record a failure of the current step without changing the outcome."""
        run = self.run
        if is_pressed(error):
            run.defer(error)
        error = run.scrubbed(understood(error))
        run.suppressed = [*(run.suppressed or ()), Suppressed(run.step.stage, run.step.name, error)]
        emit_suppressed(self, error)

    def _need(self, power: May, deed: str) -> None:
        step = self.run.step
        if power not in step.row.may:
            raise StageError(f"{step.stage} may not {deed}; stages that may: {stages_that_may(power)}")
