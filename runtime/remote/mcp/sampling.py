"""Permissions that the owner of a gate may give a server: completions of a model, and folders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from callgate.errors import RegistrationError
from callgate.tools.calls import User
from callgate.tools.limits import fault_of_seconds

if TYPE_CHECKING:
    from mcp_types import CreateMessageRequestParams, CreateMessageResult

Folders: TypeAlias = Sequence[str | Path]
"""Folders as absolute paths or as ``file://`` URIs."""
FoldersOf: TypeAlias = Callable[[User | None], Folders | Awaitable[Folders]]
"""Returns the folders that a server may know of; the user is None for a request that belongs to no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """A request of a server for a completion, in the middle of a user's call. The server wrote *params*: do not trust it.

    ``params.max_tokens`` is lowered to the limit of ``Sampling``.
    """

    server: str
    tool: str
    user: User
    params: CreateMessageRequestParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Allows a server to ask for completions of a model, within a budget for each tool call.

    Args:
        answer: asks the model. An exception is logged, and refuses the request without its text.
        max_requests: maximum number of requests of one tool call; further ones are refused.
        max_tokens: maximum length of one completion; a request for more gets this many.
        timeout: of one completion, in seconds. The deadline of the call ends it earlier.

    Raises:
        RegistrationError: *answer* is not callable, or a number is not positive.
    """

    answer: Callable[[SamplingRequest], Awaitable[CreateMessageResult]]
    max_requests: int = 4
    max_tokens: int = 1_024
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if not callable(self.answer):
            raise RegistrationError("Sampling: answer is a function that takes a SamplingRequest")
        for option in ("max_requests", "max_tokens"):
            number: object = getattr(self, option)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise RegistrationError(f"Sampling: {option} is a whole number of at least 1")
        if (fault := fault_of_seconds(self.timeout, none=False)) is not None:
            raise RegistrationError(f"Sampling: timeout {fault}")


def folder_uri(folder: str | Path) -> str:
    """Return a folder as a URI.

    Raises:
        ValueError: it is no absolute path, and no ``file://`` URI.
    """
    if isinstance(folder, str) and folder.startswith("file://"):
        return folder
    return Path(folder).as_uri()
