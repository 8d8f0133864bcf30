"""What tests of logs share: a handler on the stdlib logger, for a while."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from callgate.providers.logs import LOGGER


@contextmanager
def handled(handler: logging.Handler) -> Generator[None, None, None]:
    """*handler* hears every level."""
    LOGGER.addHandler(handler)
    LOGGER.setLevel("DEBUG")
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(logging.NOTSET)
