"""The ids of requests in a session of a version up to 2025-11-25.

The SDK finds the response of a request by its id alone. A client that uses an id again before the response would get the
response to its earlier request, and none to the later one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mcp.server.streamable_http import GET_STREAM_KEY
from mcp_types import RequestId

from callgate.runtime.hosts.mcp.access import Receive, with_body

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_ABANDONED = 256
"""Maximum number of ids that stay taken because their connection was lost, where no response is held."""


class RequestIds:
    """The ids of one session whose requests have no response yet.

    A request goes on when its connection is lost. Its id is free once its response is there, and its connection has ended.
    *is_told* says that ``note_response`` is called for each response; without that, the end of a connection that was not
    lost counts as the response.
    """

    def __init__(self, *, is_told: bool) -> None:
        self._is_told = is_told
        self._connected = {GET_STREAM_KEY}  # the SDK has the stream of the session under this id
        self._unanswered: dict[str, None] = {}  # in the order of their requests

    def take(self, id: str) -> bool:
        """Take an id for a request; return False if it is not free."""
        if id in self._unanswered or id in self._connected:
            return False
        self._connected.add(id)
        self._unanswered[id] = None
        return True

    def note_response(self, id: str) -> None:
        """Note that the response of a request is there."""
        self._unanswered.pop(id, None)

    def note_end(self, id: str, *, refused: bool, lost: bool) -> None:
        """Note that the connection of a request has ended. A *refused* request gets no other response."""
        self._connected.discard(id)
        if refused or not (self._is_told or lost):
            self._unanswered.pop(id, None)
        while not self._is_told and len(self._unanswered) > len(self._connected) + MAX_ABANDONED:
            del self._unanswered[next(one for one in self._unanswered if one not in self._connected)]


async def read_request_id(receive: Receive) -> tuple[str | None, Receive]:
    """Return the id in a body as the SDK compares it, and a ``receive`` that gives the body again; None for no request."""
    body = (await receive()).get("body", b"")  # the whole of it: ``Access`` has read it
    again = with_body(body, receive)
    from pydantic_core import from_json  # the SDK has loaded it

    try:
        message = from_json(body)
        is_request = isinstance(message, dict) and "method" in message and "id" in message
        return (str(_id_type().validate_python(message["id"])) if is_request else None), again
    except ValueError:  # also of pydantic: the SDK refuses it
        return None, again


@cache
def _id_type() -> TypeAdapter[RequestId]:
    from pydantic import TypeAdapter

    return TypeAdapter(RequestId)
