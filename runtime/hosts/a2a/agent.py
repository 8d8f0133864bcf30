"""``a2a.agent``: the Starlette application of a gate as an A2A agent.

=======  =================================  ======================================================================
GET      /.well-known/agent-card.json       the card for everybody: the tools that an anonymous user may see
POST     /rpc                               A2A 1.0, JSON-RPC over HTTP and server-sent events
POST     /a2a, /a2a/message/stream,         the documents' dialect: ``message/stream`` with ``params.tools``, and
         /a2a/tasks/resume                  ``tasks/resume``
=======  =================================  ======================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from importlib import import_module
from typing import Any

from callgate.errors import RegistrationError
from callgate.runtime.conversation.loop import Model
from callgate.runtime.faces.principal import Authenticate
from callgate.runtime.gate import Gate
from callgate.runtime.hosts.a2a.access import Caller, Contexts, guarded
from callgate.runtime.hosts.a2a.card import agent_card
from callgate.runtime.hosts.a2a.dialect import Dialect
from callgate.runtime.hosts.a2a.dispatcher import Inbox
from callgate.runtime.hosts.a2a.executor import Executor
from callgate.runtime.hosts.a2a.handler import Handler
from callgate.runtime.hosts.a2a.task_runner import Work
from callgate.runtime.hosts.a2a.task_store import Tasks
from callgate.runtime.suspensions.pending import PendingTasks
from callgate.tools.calls import ANONYMOUS, User

DEADLINE = 300.0
"""Seconds that one run of a task may take, from a message to an answer or to what it waits for."""
IDLE = 60.0
"""Seconds after which a task that waits is no longer held in memory."""


def agent(
    gate: Gate,
    *,
    authenticate: Authenticate | None = None,
    name: str,
    description: str,
    url: str,
    model: Model | None = None,
    version: str = "1",
    security: Mapping[str, Mapping[str, Any]] | None = None,
    challenge: str | None = "Bearer",
    deadline: float = DEADLINE,
) -> Any:
    """A Starlette application that makes an A2A agent of a gate; needs the extra ``a2a`` (contract 38-42, C8).

    The tools of the gate are its skills. A message with a data part ``{"type": "tool_call", "name", "arguments"}`` calls
    one, for the user of the request and with everything that the gate does about it. With a *model*, a text is answered
    in a conversation that may call tools; so may tools that the client brings along and runs itself. What has to wait,
    waits in the gate's store: a task goes on in any process, after a restart too, where the store and the
    ``signing_keys`` outlive it. Each task is its owner's alone.

    Args:
        gate: opened and closed with the application, unless it is open already.
        authenticate: finds the user of a request; default: the gate's. None from it, and ``ANONYMOUS``, are refused.
        name: what the card calls the agent.
        description: what the card says of it.
        version: the agent's own, for the card.
        url: where the application is reached from outside, such as ``https://agents.example/desk``.
        model: a client of a model, such as ``OpenAIChat(...)``; without one the agent takes calls only.
        security: how clients authenticate, for the card: A2A security schemes by name, in their JSON form.
        challenge: the ``WWW-Authenticate`` header of a refusal; None for none.
        deadline: seconds that one run of a task may take.

    Raises:
        RegistrationError: nobody authenticates, or the extra is not installed.
    """
    _require_sdk()
    known = authenticate or gate.authenticate
    if known is None:
        raise RegistrationError("a2a.agent: tasks belong to somebody: give authenticate=, here or to the Gate")
    url = url.rstrip("/")

    def card(user: User) -> Any:
        made = agent_card(
            gate.tools_for(user),
            name=name,
            description=description,
            url=url,
            version=version,
            converses=model is not None,
        )
        return _secured(made, security or {})

    waits = gate.waits
    pending = PendingTasks(lambda: waits._store().waits, waits.keys, waits._now)
    handler = _handler(gate, Work(gate, model, pending, deadline), card)
    gate._engine.at_close(handler.aclose)  # also where the application is mounted, and never told that it ends
    dialect = Dialect(handler, Contexts(), pending)
    return _application(gate, handler, dialect, card, lambda endpoint: guarded(endpoint, gate, known, challenge))


def _require_sdk() -> None:
    try:
        import_module("a2a.server.routes")
        import_module("sse_starlette")
    except ImportError as error:
        raise RegistrationError("A2A needs its SDK: pip install 'callgate[a2a]'") from error


def _handler(gate: Gate, work: Work, card: Any) -> Handler:
    from a2a.auth.user import User as SdkUser
    from a2a.server.cluster import VersionedTaskStore
    from a2a.server.request_handlers import DefaultRequestHandler

    SdkUser.register(Caller)
    VersionedTaskStore.register(Tasks)
    waits = gate.waits
    tasks: Any = Tasks(lambda: waits._store().waits, waits.keys, waits._now)
    executor: Any = Executor(work)
    streams: Any = _NoStreams()

    def inner() -> Any:
        return DefaultRequestHandler(
            executor, tasks, card(ANONYMOUS), event_stream=streams, interrupted_task_timeout=IDLE
        )

    return Handler(inner, Inbox(work, tasks, executor), executor, work, card)


def _application(gate: Gate, handler: Any, dialect: Dialect, card: Any, guard: Any) -> Any:
    from a2a.server.routes import create_agent_card_routes
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
    from starlette.applications import Starlette
    from starlette.routing import Route

    contexts: Any = Contexts()
    rpc = JsonRpcDispatcher(handler, contexts)

    async def public(_: Any) -> Any:
        return card(ANONYMOUS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None, None]:
        async with contextlib.AsyncExitStack() as stack:
            if not gate.is_open:
                await stack.enter_async_context(gate)
            stack.push_async_callback(handler.aclose)
            yield

    routes = create_agent_card_routes(card(ANONYMOUS), card_modifier=public)
    routes.append(Route("/rpc", guard(rpc.handle_requests), methods=["POST"]))
    for path in Dialect.paths:
        routes.append(Route(path, guard(dialect.serve), methods=["POST"]))
    return Starlette(routes=routes, lifespan=lifespan)


def _secured(card: Any, schemes: Mapping[str, Mapping[str, Any]]) -> Any:
    """The card with what it says of authentication: any one of the schemes will do."""
    from a2a.types import SecurityRequirement, SecurityScheme, StringList
    from google.protobuf.json_format import ParseDict

    for scheme, said in schemes.items():
        card.security_schemes[scheme].CopyFrom(ParseDict(dict(said), SecurityScheme()))
        card.security_requirements.append(SecurityRequirement(schemes={scheme: StringList()}))
    return card


class _NoStreams:
    """No events from other processes: who subscribes to a task that another one works on gets what is in the store."""

    async def publish(self, task_id: str, event: Any) -> None:
        """Nobody else listens."""

    async def subscribe(self, task_id: str, *, after: Any) -> AsyncGenerator[Any, None]:
        """Nothing follows."""
        return
        yield

    async def destroy(self, task_id: str) -> None:
        """There is nothing to give up."""
