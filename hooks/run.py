"""``Run``: the runtime's own state of one invocation. Hooks see ``InvokeContext``, tools see ``ToolContext``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from callgate.errors import ControlRespond
from callgate.hooks.facts import FROZEN, RAW, Suppressed, Suspension
from callgate.hooks.history import Kept
from callgate.hooks.step import Step
from callgate.providers.registry import MISSING
from callgate.providers.scope import ProviderScope
from callgate.tools.calls import Outcome, ToolCall, User
from callgate.tools.values import thaw


class _ShownInput:
    """The default of ``Run.shown_input``; once set, the attribute is the instance's own, and costs no call."""

    def __get__(self, run: Any, owner: Any) -> Any:
        if run.input_state == FROZEN:
            run.shown_input = thaw(run.input)
            return run.shown_input
        if run.input is run.hydration or run.input is run.tool_call:  # a placeholder for the raw arguments
            return run.raw_input
        if run.input is run.raw_input and isinstance(run.input, Mapping):
            run.input = thaw(dict(run.input))  # the caller's object must not change
        return run.input


class Run:
    """The state that the runtime keeps of one invocation, beside the context of its hooks.

    Attributes that are rarely set have class-level defaults, so making a run is cheap. The constructor sets those that
    every invocation reads, because a class-level read costs more than a store.
    """

    step: Step
    session_id: str | None = None
    failed_in: Step | None = None
    deferred: BaseException | None = None  # a cancellation that arrived while a step had to finish
    alarm: Any = None  # the armed deadline
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
    resumed: Any = None  # the answers given to this run of a suspended call
    claim: Any = None  # its claim in the effect ledger
    replayed: bool = False  # the output or error comes from an earlier call with the same key
    outer: Run | None = None  # the run of the call that made this nested call
    nested: int = 0  # nested calls made so far
    nth: int = 0  # the number of this nested call within its outer call
    asked: dict[str, int] | None = None  # requests to a person or client so far, by stage, hook and kind
    pending_release: bool = False
    hidden: Any = None  # cancel scopes hidden from closing steps
    abandoned: bool = False
    unknown: BaseException | None = None  # the error of a call that names no tool
    finished: float | None = None
    deadline_at: float | None = None
    parse_rules: tuple[str, ...] = ()
    events: Any = None
    trace: Any = None  # the rows of a traced call
    watch: Any = None  # wraps what ``ctx.lease`` enters; for tests
    scrubber: Any = None
    maskers: tuple[Any, ...] = ()

    input_state: int = RAW
    shown_input: Any = _ShownInput()  # what hooks read as ``ctx.input``
    masked: Any = MISSING
    output: Any = None
    output_json: bytes | None = None
    input_log: list[Any] | None = None
    output_log: list[Any] | None = None
    tool_call: ToolCall | None = None
    request_id: str | None = None
    scope: ProviderScope | None = None
    ends_scope: bool = True  # False for a nested call, and for a scope that an abandoned body still holds
    suppressed: list[Suppressed] | None = None
    hooks: dict[Any, Any] | None = None  # instances of hook classes

    def __init__(self, plan: Any, arguments: Any, user: User, started: float) -> None:
        self.plan = plan
        self.raw_input = self.input = arguments
        self.user = user
        self.started = started
        self.special = False  # True with a deadline, an error or a deferred cancellation
        self.leases: Any = None
        self.error: BaseException | None = None

    def scrubbed(self, error: BaseException) -> BaseException:
        """Return the error without the secrets of this invocation: the same object if it shows none."""
        return error if self.scrubber is None else cast("BaseException", self.scrubber.error(error))

    def request_scope(self) -> ProviderScope:
        """The provider scope of this invocation and its nested calls; it closes when the invocation ends."""
        scope = self.scope
        if scope is None:
            owner = (self.user.tenant, self.user.id)
            scope = self.scope = cast("ProviderScope", self.plan.host.registry.request(self.session_id, owner))
        return scope

    def take(self, response: ControlRespond) -> None:
        """Make a hook's response the output."""
        self.output, self.validate_response = response.value, response.validate
        self.output_log = [*(self.output_log or ()), Kept(self, response.value)]

    def hold_back(self, cancelled: BaseException) -> None:
        """Defer a cancellation that arrived while a step had to finish; the runtime raises it after the step."""
        self.deferred = cancelled
        self.special = True
