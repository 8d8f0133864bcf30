"""The log line of requests that are refused because an application was never opened: a response of 503 gives no reason."""

from __future__ import annotations

from callgate.errors import GateClosed
from callgate.providers.logs import LogEvent, emit

OPENS = "write `async with gate:` in the lifespan of the main application; a mounted one gets no lifespan events"


class NotOpen:
    """Logs once for the application of *host* that it refuses requests; *advice* is what opens it."""

    def __init__(self, host: str, advice: str) -> None:
        self._host, self._advice = host, advice
        self._is_logged = False

    def log(self) -> None:
        """Log the refusal of a request."""
        if self._is_logged:
            return
        self._is_logged = True
        error = GateClosed(f"every request is refused with 503, because the application is not open: {self._advice}")
        emit(LogEvent.PROVIDER_FAILED, provider=self._host, phase="open", error=error)
