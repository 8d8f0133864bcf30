"""The checks of production mode: one refusal that lists everything a gate lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from callgate.errors import RegistrationError
from callgate.providers.stores.base import Store
from callgate.runtime.pipeline.policy import Policy
from callgate.tools.definition import Effect
from callgate.tools.record import ToolRecord

NAMED = 5
"""Number of tools that a message names."""


class DurableRecords(Protocol):
    """The facts about the gate's effect ledger and suspensions that a check reads."""

    @property
    def store(self) -> Store:
        """The store of the effects and suspensions."""
        ...

    @property
    def durable(self) -> bool | None:
        """False if the gate accepts a store that loses its data."""
        ...

    @property
    def resumable(self) -> bool:
        """True if another process can resume a suspended call, because signing keys were given."""
        ...


def refuse_unready(policy: Policy, records: DurableRecords, *, allow_unguarded: bool, is_open: bool = False) -> None:
    """Refuse the policy of a gate that would run half-configured, or what is new in that of a gate which is open.

    Raises:
        RegistrationError: lists what is missing, each with the line to write, and names development mode.
    """
    missing = list(_missing(policy, records, allow_unguarded))
    if missing:
        lines = "\n".join(f"- {line}" for line in missing)
        what = "the open gate refuses this change" if is_open else "the gate does not open in production mode"
        raise RegistrationError(
            f'{what}:\n{lines}\nTo try tools on your own machine, without any of this: Gate([...], mode="development")'
        )


def _missing(policy: Policy, records: DurableRecords, allow_unguarded: bool) -> Iterator[str]:
    unguarded = [] if allow_unguarded else policy.unguarded()
    if unguarded:
        yield (
            f"no hook authorises every call of {_named(unguarded)}. Give Gate(..., hooks=[Authorize(...)]) or a hook with "
            'will_authorize; declare @tool(effect="read") if it changes nothing; or accept it: '
            "Gate(..., allow_unguarded=True)"
        )
    changing = [record for record in policy.tools if record.definition.effect is not Effect.READ]
    forgets = bool(changing) and records.durable is not False and not records.store.durable
    if forgets:
        yield (
            f"the store ({records.store.name}) forgets at the end of the process what {_named(changing)} did. "
            'Give Gate(..., store="sqlite:///file.db") or a PostgreSQL; declare @tool(effect="read") if it changes '
            "nothing; or accept it: Gate(..., effects=Effects(durable=False))"
        )
    if (records.store.durable or forgets) and not records.resumable:
        asking = [record for record in policy.tools if policy.of(record).asks_for_approval()]
        if asking:
            yield (
                f"calls of {_named(asking)} wait for approval, and no process could resume them after a restart. "
                "Give Gate(..., signing_keys=[...]) a secret, the same in every process"
            )


def _named(records: Iterable[ToolRecord]) -> str:
    """Return the names of some tools, each with its effect."""
    names = [f"{record.id!r} (effect {record.definition.effect or 'undeclared'})" for record in records]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{'tool' if len(names) == 1 else 'tools'} {', '.join(names[:NAMED])}{more}"
