"""Mistakes that a strict type checker must report: on every line that is marked, and nowhere else."""

from __future__ import annotations

from dependency_injector import containers, providers

from callgate import Gate, Hook, InvokeContext, Provide, Scoped, User, tool


class Db:
    """A pool."""


class Cache:
    """Not a pool."""


class App(containers.DeclarativeContainer):
    """The service's providers."""

    db = providers.Singleton(Db)
    cache = providers.Singleton(Cache)


@tool(effect="read")
async def find_order(order_id: str) -> int:
    """Find an order."""
    return len(order_id)


@tool(effect="read")
async def wrong_type(order_id: str, db: Db = Provide[App.cache]) -> int:  # mistake: injected type
    """A cache is no pool."""
    return len(order_id) + id(db)


class WrongContext(Hook):
    """Takes a number for a context."""

    async def will_authorize(self, ctx: int) -> None: ...  # mistake: hook signature


class WrongAnswer(Hook):
    """Answers where an answer decides nothing."""

    def will_authorize(self, ctx: InvokeContext) -> bool:  # mistake: hook signature
        return True


class WantsMore(Hook):
    """Takes an argument that the runtime does not pass."""

    async def will_audit(self, ctx: InvokeContext, table: str) -> None: ...  # mistake: hook signature


async def main(gate: Gate) -> None:
    """Use them."""
    text: str = await gate.invoke(find_order, {"order_id": "7"}, user=User("u"))  # mistake: result of invoke
    number: int = (await gate.session(user=User("u")).__aenter__()).session_id  # mistake: session id
    Scoped("forever", Db)  # mistake: scope
    print(text, number)
    await gate.invoke(find_order, {}, user="u1")  # mistake: user
    await gate.invoke(find_order, {}, user=User("u"), dead_line=3)  # mistake: option
