"""The lines of standard input for the SDK's server, with limits: its own reader takes a line of any size."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager

import anyio.to_thread

from callgate.providers.http.bounded import MAX_MEMORY, PIECE, BodyRefused, longest
from callgate.runtime.models.wire.message_memory import SMALL, parse_bounded
from callgate.tools.arguments.exact_json import what_is_lost

NO_MESSAGE = "null\n"
"""What the SDK reads in place of a line that it must not parse."""


@contextmanager
def standard_input() -> Generator[int]:
    """Move standard input to a descriptor of its own meanwhile: what tools read there is empty."""
    private, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(private, False)
    try:
        os.dup2(nothing, 0)
        yield private
    finally:
        os.dup2(private, 0)
        os.close(nothing)
        os.close(private)


async def bounded_lines(descriptor: int, max_memory: int = MAX_MEMORY) -> AsyncGenerator[str]:
    """Read lines, until the client closes them or sends a line that is too long."""
    line: list[bytes] = []
    size = 0
    while size <= longest(max_memory) and (part := await anyio.to_thread.run_sync(os.read, descriptor, PIECE)):
        *ended, rest = part.split(b"\n")
        for end in ended:
            line.append(end)
            data = b"".join(line)
            line.clear()
            yield _checked(data, max_memory)
            size = 0
        line.append(rest)
        size += len(rest)


def _checked(data: bytes, max_memory: int) -> str:
    try:
        if len(data) > SMALL:
            parse_bounded(data, max_memory)
    except (BodyRefused, ValueError):
        return NO_MESSAGE
    if what_is_lost(data) is not None:
        return NO_MESSAGE
    return data.decode(errors="replace")
