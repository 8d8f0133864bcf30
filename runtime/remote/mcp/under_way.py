"""The calls that a server works on, and what it asks for in the middle of them."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from mcp.client.session import ClientRequestContext
from mcp_types import (
    INVALID_REQUEST,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
)

from callgate.hooks.tool_view import ToolView
from callgate.providers.logs import LogEvent, emit
from callgate.runtime.remote.mcp.face import McpServer
from callgate.runtime.remote.mcp.sampling import SamplingRequest, folder_uri

HELD = 540.0
"""Seconds that a server up to version 2025-11-25 is kept waiting for an answer to its question in the middle of a call."""
MAX_HELD = 100
"""Maximum number of calls of one connection whose server waits for an answer."""
CLEANS_UP = 0.2
"""Maximum number of seconds that a cancelled call waits for the notice to its server."""


class CallUnderWay:
    """One call of a remote tool. ``ctx`` is its run in the gate; None while the call is suspended.

    Up to version 2025-11-25, the server asks over the connection and its request stays open. So the request of the call
    stays open, too, while the call is suspended: the run that has the answer takes it up again by its token.

    ``unsent`` is True while its first request over HTTP waits for a connection: the server has not seen the call.
    """

    def __init__(self, ctx: ToolView, tool: str, sampled: int) -> None:
        self.ctx: ToolView | None = ctx
        self.user, self.tool, self.sampled = ctx.user, tool, sampled
        self.token = secrets.token_hex(16)
        self._posts, self.unsent = False, False
        self.question: ElicitRequestFormParams | None = None
        self._answer: asyncio.Future[ElicitResult] | None = None
        self._asks = asyncio.Event()
        self._sending: asyncio.Task[CallToolResult] | None = None

    def start(self, request: Coroutine[object, None, CallToolResult]) -> None:
        """Send the request of the call."""
        with self.current():
            # asyncio: it outlives the run that sends it
            self._sending = asyncio.ensure_future(request)
        self._sending.add_done_callback(_read)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make this the call of the requests that begin in the block."""
        token = CALL.set(self)
        try:
            yield
        finally:
            CALL.reset(token)

    def posts(self) -> bool:
        """Note a request over HTTP; return True for the first one, which is that of the call."""
        before, self._posts = self._posts, True
        return not before

    async def ended_or_asks(self, within: float | None = None) -> bool:
        """Wait for the response, or for a question; return True for a response. A run that is cancelled ends the request.

        Raises:
            TimeoutError: there was neither in time.
        """
        assert self._sending is not None
        # asyncio: both go on after the wait
        asking = asyncio.ensure_future(self._asks.wait())
        try:
            done, _ = await asyncio.wait([self._sending, asking], timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await self.abandon()
                raise TimeoutError
        except asyncio.CancelledError:
            await self.abandon()
            raise
        finally:
            asking.cancel()
        return self._sending.done()

    def response(self) -> CallToolResult:
        """Return the response, or raise the error of the request."""
        assert self._sending is not None
        return self._sending.result()

    async def abandon(self) -> None:
        """Cancel the request, and wait a short time for its end.

        The SDK notifies the server, and waits 5 seconds for a server that keeps the connection busy.
        """
        assert self._sending is not None
        self._sending.cancel()
        await asyncio.wait([self._sending], timeout=CLEANS_UP)

    async def ask(self, question: ElicitRequestFormParams) -> ElicitResult:
        """Suspend the call until its user answers."""
        self.question, self._answer = question, asyncio.get_running_loop().create_future()
        self._asks.set()
        try:
            return await self._answer
        finally:
            self.question = self._answer = None
            self._asks.clear()

    def answer(self, result: ElicitResult) -> None:
        """Answer the question, unless the server has withdrawn it."""
        self._asks.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(result)


CALL: ContextVar[CallUnderWay | None] = ContextVar("callgate_mcp_call", default=None)
"""The call whose HTTP response the server asks in."""


class ServerCalls:
    """The calls of one server, and the answers to what it asks for in them: the callbacks of the SDK's client."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._calls = set[CallUnderWay]()
        self._held: dict[str, tuple[CallUnderWay, asyncio.TimerHandle]] = {}

    def add(self, call: CallUnderWay) -> None:
        """Note that a call has begun."""
        self._calls.add(call)

    def discard(self, call: CallUnderWay) -> None:
        """Forget a call that has ended."""
        self._calls.discard(call)

    # ------------------------------------------------------------------ calls that wait

    def hold(self, call: CallUnderWay) -> bool:
        """Keep the request of a call that is being suspended. False if too many are kept."""
        if len(self._held) >= MAX_HELD:
            return False
        call.ctx = None
        timer = asyncio.get_running_loop().call_later(HELD, self._give_up, call)
        self._held[call.token] = call, timer
        return True

    def take_up(self, token: str, ctx: ToolView) -> CallUnderWay | None:
        """Return a call that was suspended; None if it ended, or another process holds it."""
        found = self._held.get(token)
        if found is None or found[0].user != ctx.user:
            return None
        call, timer = self._held.pop(token)
        timer.cancel()
        call.ctx = ctx
        return call

    def close(self) -> None:
        """Give up the calls that are kept."""
        for call, timer in list(self._held.values()):
            timer.cancel()
            self._give_up(call)

    def _give_up(self, call: CallUnderWay) -> None:
        del self._held[call.token]
        self.discard(call)
        call.answer(ElicitResult(action="cancel"))
        # asyncio: the timer does not wait for it
        ending = asyncio.ensure_future(call.abandon())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)

    # ------------------------------------------------------------------ what a server asks for

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Suspend the call until its user answers the form."""
        del context  # it does not name the call
        call = self._current()
        if call is None:
            return _refused("It is not clear which call this question belongs to.")
        if not isinstance(params, ElicitRequestFormParams) or call.question is not None:
            return _refused("A call asks one form at a time.")
        return await call.ask(params)

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Ask the model of the gate's owner."""
        del context
        call = self._current()
        if call is None or call.ctx is None:
            return _refused("It is not clear which call this request belongs to.")
        return await self.completion(call, call.ctx, params)

    async def completion(
        self, call: CallUnderWay, ctx: ToolView, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Return the completion that a server asks for in a call, or the refusal."""
        allowed = self._server.sampling
        if allowed is None or params.tools:
            return _refused("Sampling is not supported.")
        call.sampled += 1
        if call.sampled > allowed.max_requests:
            return _refused("The call has asked for all completions that one call may ask for.")
        left = ctx.remaining()
        asked = params.model_copy(update={"max_tokens": min(params.max_tokens, allowed.max_tokens)})
        request = SamplingRequest(server=self._server.name, tool=call.tool, user=call.user, params=asked)
        try:
            async with asyncio.timeout(allowed.timeout if left is None else min(allowed.timeout, left)):
                return await allowed.answer(request)
        except Exception as error:  # noqa: BLE001  (the server must not read it)
            emit(LogEvent.PROVIDER_FAILED, provider=f"mcp:{self._server.name}", phase="sampling", error=error)
            return _refused("There is no completion.")

    async def list_roots(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        """Return the folders for the user of the current call, or for none."""
        del context
        call = self._current()
        return await self.roots(call)

    async def roots(self, call: CallUnderWay | None) -> ListRootsResult | ErrorData:
        """Return the folders that the server may know of, or the refusal."""
        allowed = self._server.roots
        if allowed is None:
            return _refused("Roots are not supported.")
        try:
            if callable(allowed):
                found = allowed(None if call is None else call.user)
                folders = await found if inspect.isawaitable(found) else found
            else:
                folders = allowed
            return ListRootsResult(roots=[Root.model_validate({"uri": folder_uri(one)}) for one in folders])
        except Exception as error:  # noqa: BLE001  (the server must not read it)
            emit(LogEvent.PROVIDER_FAILED, provider=f"mcp:{self._server.name}", phase="roots", error=error)
            return _refused("There are no roots.")

    def _current(self) -> CallUnderWay | None:
        """Return the call of a request: over HTTP that of the response it came in, else the only one.

        Over stdio, a request of the server names no call. With several under way, a user would answer for another one.
        """
        call = CALL.get()
        if call is None and len(self._calls) == 1:
            call = next(iter(self._calls))
        return call if call in self._calls else None


_ENDING: set[asyncio.Future[None]] = set()


def _read(request: asyncio.Task[CallToolResult]) -> None:
    """Read the error of a request: asyncio would log it if no run takes the call up again."""
    if not request.cancelled():
        request.exception()


def _refused(text: str) -> ErrorData:
    return ErrorData(code=INVALID_REQUEST, message=text)
