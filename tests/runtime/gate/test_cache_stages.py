"""A cache hook as a user writes one: raw values in, shaped for each reader on the way out."""

from __future__ import annotations

from typing import Any

from callgate import Gate, Hook, InvokeContext, User, tool

CARD = "4111"


@tool(effect="read")
async def card(n: int) -> dict[str, str]:
    """A record with a field that not everybody may read."""
    return {"owner": f"o{n}", "card": CARD}


class Cache(Hook):
    """Keeps what the tool returned, before anybody's redaction."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.writes = 0
        self.seen: list[tuple[bool | None, bool]] = []

    def will_read_cache(self, ctx: InvokeContext) -> None:
        if ctx.input_hash in self.kept:
            ctx.respond(self.kept[ctx.input_hash])

    def will_write_cache(self, ctx: InvokeContext) -> None:
        self.seen.append((ctx.cache_hit, ctx.executed))
        if ctx.executed and not ctx.cache_hit:
            self.kept[ctx.input_hash] = dict(ctx.output)
            self.writes += 1


class Masks(Hook):
    """Clerks do not see card numbers."""

    def will_redact_output(self, ctx: InvokeContext) -> None:
        if "manager" not in ctx.user.roles:
            ctx.output = {**ctx.output, "card": "***"}


async def test_a_cache_holds_the_raw_value_and_every_reader_gets_it_shaped_for_himself() -> None:
    """Contract C15, C15a, 98, 99."""
    cache = Cache()
    manager, clerk = User("m", roles={"manager"}), User("c")
    async with Gate([card], [cache, Masks()]) as gate:
        answers = [await gate.invoke("card", {"n": 1}, user=user) for user in (clerk, manager, clerk)]
    assert [answer["card"] for answer in answers] == ["***", CARD, "***"]
    assert [value["card"] for value in cache.kept.values()] == [CARD]
    assert cache.writes == 1
    assert cache.seen == [(None, True), (True, False), (True, False)]
