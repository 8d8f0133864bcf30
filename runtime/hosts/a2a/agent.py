"""``a2a.agent``: a Starlette application that serves a gate as an A2A agent.

=======  =================================  ======================================================================
GET      /.well-known/agent-card.json       the public card: tools that an anonymous user may see
POST     /rpc                               A2A 1.0, JSON-RPC over HTTP and server-sent events
POST     /a2a, /a2a/message/stream,         the older dialect: ``message/stream`` with ``params.tools``, and
         /a2a/tasks/resume                  ``tasks/resume``
=======  =================================  ======================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from callgate.errors import RegistrationError
from callgate.providers.kinds import checks_kinds
from callgate.runtime.conversation.loop import Model
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.a2a.access import Caller, ContextBuilder, Endpoint, authenticated
from callgate.runtime.hosts.a2a.card import agent_card
from callgate.runtime.hosts.a2a.dialect import Dialect
from callgate.runtime.hosts.a2a.dispatcher import Dispatcher
from callgate.runtime.hosts.a2a.executor import Executor
from callgate.runtime.hosts.a2a.handler import Handler
from callgate.runtime.hosts.a2a.task_runner import TaskRunner
from callgate.runtime.hosts.a2a.task_store import TaskStore
from callgate.runtime.hosts.http_requests import Authenticate
from callgate.runtime.suspensions.pending import PendingTasks
from callgate.tools.calls import ANONYMOUS, User

if TYPE_CHECKING:
    from a2a.types import AgentCard
    from starlette.applications import Starlette


DEADLINE = 300.0
"""Timeout of one run of a task, in seconds: from a message to an answer or a suspension."""
IDLE = 60.0
"""Seconds after which the SDK drops a waiting task from memory; the store keeps it."""


@checks_kinds(RegistrationError, skip=("model", "deadline"))
def agent(
    gate: Gate,
    *,
    authenticate: Authenticate | None,
    name: str,
    description: str,
    url: str,
    model: Model | None = None,
    version: str = "1",
    security: Mapping[str, Mapping[str, object]] | None = None,
    challenge: str | None = "Bearer",
    deadline: float = DEADLINE,
) -> Any:
    """Return a Starlette application that serves a gate as an A2A agent; needs the extra ``a2a``.

    The tools of the gate are the agent's skills. A message with a data part ``{"type": "tool_call", "name",
    "arguments"}`` calls a tool through the gate, for the user of the request. With a *model*, the agent answers a text in
    a conversation that may call tools; a client may also offer tools of its own, which it runs itself. A suspended task
    waits in the gate's store. Any process with the same store and ``signing_keys`` can resume it, also after a restart.
    Only its owner sees a task.

    Args:
        gate: opened and closed with the application, unless it is already open.
        authenticate: finds the user of a request. A request without a user is refused.
        name: the agent's name, for the card.
        description: the agent's description, for the card.
        version: the agent's version, for the card.
        url: the public address of the application, such as ``https://agents.example/desk``.
        model: the client of a model, such as ``OpenAIChat(...)``; without a model the agent takes tool calls only.
        security: A2A security schemes by name, in their JSON form, for the card.
        challenge: the ``WWW-Authenticate`` header of a 401 response; None for no header.
        deadline: timeout of one run of a task, in seconds.

    Raises:
        RegistrationError: *authenticate* is None, *deadline* is no time in seconds, or the extra is not installed.
    """
    _require_sdk()
    if authenticate is None:
        raise RegistrationError(
            "a2a.agent: each task has an owner: give a2a.agent(gate, authenticate=...) a function that finds the user"
        )

    def card(user: User) -> AgentCard:
        made = agent_card(
            gate.tools_for(user),
            name=name,
            description=description,
            url=url.rstrip("/"),
            version=version,
            converses=model is not None,
        )
        return _secured(made, security or {})

    pending = PendingTasks(lambda: gate.waits.store().suspensions, gate.waits.keys, gate.waits.now)
    handler = _handler(gate, TaskRunner(gate, model, pending, deadline), card)
    gate.at_close(handler.aclose)  # a mounted application gets no shutdown event
    dialect = Dialect(handler, ContextBuilder(), pending)
    return _application(
        gate, handler, dialect, card, lambda endpoint: authenticated(endpoint, gate, authenticate, challenge)
    )


def _require_sdk() -> None:
    try:
        import_module("a2a.server.routes")
        import_module("sse_starlette")
    except ImportError as error:
        raise RegistrationError("A2A needs its SDK: pip install 'callgate[a2a]'") from error


def _handler(gate: Gate, runner: TaskRunner, card: Callable[[User], AgentCard]) -> Handler:
    from a2a.auth.user import User as SdkUser
    from a2a.server.cluster import VersionedTaskStore
    from a2a.server.request_handlers import DefaultRequestHandler

    SdkUser.register(Caller)
    VersionedTaskStore.register(TaskStore)
    waits = gate.waits
    tasks: Any = TaskStore(waits.store, waits.keys, waits.now)
    executor: Any = Executor(runner)
    streams: Any = _NoEventStream()

    def inner() -> Any:
        return DefaultRequestHandler(
            executor, tasks, card(ANONYMOUS), event_stream=streams, interrupted_task_timeout=IDLE
        )

    return Handler(inner, Dispatcher(runner, tasks, executor), executor, runner, card)


def _application(
    gate: Gate, handler: Any, dialect: Dialect, card: Callable[[User], AgentCard], guard: Callable[[Endpoint], Endpoint]
) -> Starlette:
    from a2a.server.routes import create_agent_card_routes
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
    from starlette.applications import Starlette
    from starlette.routing import Route

    contexts: Any = ContextBuilder()
    rpc = JsonRpcDispatcher(handler, contexts)

    async def public(_: AgentCard) -> AgentCard:
        return card(ANONYMOUS)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None, None]:
        async with contextlib.AsyncExitStack() as stack:
            if not gate.is_open:
                await stack.enter_async_context(gate)
            stack.callback(gate.at_close(handler.aclose))
            stack.push_async_callback(handler.aclose)
            yield

    routes = create_agent_card_routes(card(ANONYMOUS), card_modifier=public)
    routes.append(Route("/rpc", guard(rpc.handle_requests), methods=["POST"]))
    for path in Dialect.paths:
        routes.append(Route(path, guard(dialect.serve), methods=["POST"]))
    return Starlette(routes=routes, lifespan=lifespan)


def _secured(card: AgentCard, schemes: Mapping[str, Mapping[str, object]]) -> AgentCard:
    """Add security schemes to a card; a client needs one of them."""
    from a2a.types import SecurityRequirement, SecurityScheme, StringList
    from google.protobuf.json_format import ParseDict

    for scheme, details in schemes.items():
        card.security_schemes[scheme].CopyFrom(ParseDict(dict(details), SecurityScheme()))
        card.security_requirements.append(SecurityRequirement(schemes={scheme: StringList()}))
    return card


class _NoEventStream:
    """The SDK's event stream between processes, without events: ``Handler`` polls the store instead."""

    async def publish(self, task_id: str, event: object) -> None:
        """Do nothing: no other process subscribes."""

    async def subscribe(self, task_id: str, *, after: object) -> AsyncGenerator[object, None]:
        """Yield no events."""
        return
        yield

    async def destroy(self, task_id: str) -> None:
        """Do nothing: there is no stream."""
