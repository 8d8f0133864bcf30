"""Context managers: the types of ``contextlib``, and those that are not entered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import PurePath
from typing import Any


@contextmanager
def _generator() -> Generator[None]:
    yield


@asynccontextmanager
async def _async_generator() -> AsyncGenerator[None]:
    yield


GENERATOR_MANAGERS = (type(_generator()), type(_async_generator()))
"""The types that ``@contextmanager`` and ``@asynccontextmanager`` return."""
WRAPPERS = (*GENERATOR_MANAGERS, closing, aclosing)
"""The types of objects that serve only to be entered. Such an object is entered even if it is given as a value."""


def is_entered(manager: Any, given: Collection[Any]) -> bool:
    """Return False for context managers that are not entered: locks, paths, and instances that the factory was given.

    A lock is injected to be acquired by the tool. Entering a path does nothing and warns.
    """
    if any(manager is one for one in given) or isinstance(manager, PurePath):
        return False
    return not hasattr(manager, "acquire") or hasattr(manager, "close") or hasattr(manager, "aclose")
