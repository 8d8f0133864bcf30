"""Rows of the audit log about hydration attempts: a call that a model proposed, whether or not it ran."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from callgate.hooks.context import InvokeContext
from callgate.hooks.state.host import Host
from callgate.hooks.stock.records.audit_chain import Chain, micros
from callgate.providers.logs import LogEvent, emit
from callgate.tools.values import hash_of


class HydrationRows:
    """Writes a row of the kind ``hydration``. No user is known yet, so the row has no tenant.

    ``every`` is False where the gate gives only attempts whose calls never ran.
    """

    def __init__(
        self, chain_of: Callable[[Host[InvokeContext]], Chain], version: int, *, shows: bool, every: bool
    ) -> None:
        self._chain_of, self._version, self._shows, self.every = chain_of, version, shows, every

    def __call__(self, host: Host[InvokeContext], record: Mapping[str, object]) -> Coroutine[object, None, None] | None:
        """Note the row of one attempt; see ``attempt_record``. Return the coroutine that writes it, if writing may wait."""
        chain, body = self._chain_of(host), self._row(record)
        if not chain.deferred:
            return self._write(chain, body)
        chain.noted.append(("", dict, body))
        if len(chain.noted) > chain.room:
            chain.trim()
        return None

    @staticmethod
    async def _write(chain: Chain, body: dict[str, object]) -> None:
        try:
            await chain.add("", body)
        except Exception as error:  # noqa: BLE001  (the attempt is over; nothing waits for the row)
            emit(LogEvent.PROVIDER_FAILED, provider="audit", phase="record", error=error)

    def _row(self, record: Mapping[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in record.items() if name not in ("at", "payload", "repair", "rules")}
        row = {
            "v": self._version,
            "kind": "hydration",
            "at_us": micros(record["at"]),
            **rest,
            "rules": list(record["rules"]),
            "input": _as_json(record["payload"]) if self._shows else None,
        }
        repair = record["repair"]
        if repair is not None and self._shows:
            shown = {name: _as_json(value) for name, value in repair.items() if name != "at"}
            row["repair"] = {"at_us": micros(repair["at"]), **shown}
        return row


def _as_json(value: object) -> object:
    """Return a value that the hash of a row takes, or None: a model may send any number."""
    try:
        hash_of(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return value
