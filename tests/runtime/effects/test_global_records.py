"""An effect that tenants share is recorded for the tenant of its caller: nobody else reads the row, and they do."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from callgate import Effects, Gate, User, tool
from callgate.hooks import Audit
from tests.providers.stores.backends import place


@pytest.mark.parametrize("kind", ["memory", "sqlite-file", "postgresql"])
async def test_the_rows_of_a_shared_effect_are_those_of_its_caller(kind: str, tmp_path: Path) -> None:
    """Also of the repeat by another tenant, and of a caller without a tenant."""

    @tool(effect="irreversible", key=("order",), key_scope="global")
    async def ship(order: str) -> str:
        """Ship an order."""
        return order

    with ExitStack() as stack:
        store: Any = "memory://" if kind == "memory" else stack.enter_context(place(kind, tmp_path))[0]
        options = Effects(durable=False)
        async with Gate([ship], [Audit()], store=store, effects=options, allow_unguarded=True) as gate:
            for user in (User("ann", "acme"), User("bob", "other"), User("eve")):
                await gate.call("ship", {"order": f"{user.id} 1"}, user=user)
                await gate.call("ship", {"order": "ann 1"}, user=user)
            for user in (User("ann", "acme"), User("bob", "other"), User("eve")):
                rows = [row.body async for row in gate.store.audit.read(user.tenant or "")]
                ended = [body for body in rows if body["kind"] == "outcome"]
                assert {body["user"] for body in rows} == {user.id}
                assert len(ended) == 2
