"""Agreed definitions of outside tools, the same on every store that keeps them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from callgate.providers.stores.effects import Pin
from tests.providers.stores.backends import Backend

PIN = Pin("mcp'\"; --", "töol", "digest", 1.5, "ann")


async def test_a_pin_is_found_by_its_tenant_provider_and_tool(durable: Backend) -> None:
    pins, tenant = durable.store.pins, durable.tenant
    assert await pins.find(tenant, PIN.provider, PIN.tool) is None
    await pins.put(tenant, PIN)
    assert await pins.find(tenant, PIN.provider, PIN.tool) == PIN
    for place in ((tenant + "2", PIN.provider, PIN.tool), (tenant, "p", PIN.tool), (tenant, PIN.provider, "t")):
        assert await pins.find(*place) is None


async def test_a_tool_is_pinned_once_by_adding_and_anew_by_putting(durable: Backend) -> None:
    pins, tenant = durable.store.pins, durable.tenant
    assert await pins.add(tenant, PIN) == PIN
    other = replace(PIN, digest="other", at=2.0, by=None)
    assert await pins.add(tenant, other) == PIN, "what was agreed to first"
    assert await pins.find(tenant, PIN.provider, PIN.tool) == PIN
    await pins.put(tenant, other)
    assert await pins.find(tenant, PIN.provider, PIN.tool) == other
    assert await pins.add(tenant, PIN) == other


async def test_the_pins_of_a_provider_are_listed_by_name(durable: Backend) -> None:
    pins, tenant = durable.store.pins, durable.tenant
    names = ["b", "a", "ä", "Z", "z", "_", "a b"]
    for name in names:
        await pins.put(tenant, replace(PIN, tool=name))
    await pins.put(tenant, replace(PIN, provider="another"))
    await pins.put(tenant + "2", replace(PIN, tool="elsewhere"))
    assert [pin.tool for pin in await pins.list(tenant, PIN.provider)] == sorted(names)
    assert list(await pins.list(tenant, "another")) == [replace(PIN, provider="another")]
    assert list(await pins.list(tenant, "unknown")) == []


async def test_of_fifty_who_add_a_pin_all_are_told_the_same_one(durable: Backend) -> None:
    given = [replace(PIN, digest=f"d{number}") for number in range(50)]
    told = await asyncio.gather(*(durable.store.pins.add(durable.tenant, pin) for pin in given))
    assert len(set(told)) == 1
    assert await durable.store.pins.find(durable.tenant, PIN.provider, PIN.tool) == told[0]
