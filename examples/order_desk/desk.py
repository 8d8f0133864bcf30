"""The resources of the order desk: a database and carriers. This module is independent of tool calls."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from dependency_injector import containers, providers

SCHEMA = """
create table if not exists orders (
    id text primary key, tenant text not null, placed_at text not null, total_cents integer not null,
    street text not null, postcode text not null, country text not null
);
create table if not exists stock (sku text primary key, free integer not null check (free >= 0));
create table if not exists reservations (
    order_id text not null, sku text not null, quantity integer not null, until text not null,
    primary key (order_id, sku)
);
create table if not exists refunds (
    order_id text primary key, cents integer not null, reason text not null, by_user text not null
);
"""
ORDERS = [
    ("A-1001", "acme", "2026-03-02T09:15:00+00:00", 12_900, "Am Markt 4", "28195", "DE"),
    ("A-1002", "acme", "2026-03-04T17:40:00+00:00", 4_250, "Rue du Bac 12", "75007", "FR"),
    ("A-1003", "acme", "2026-03-09T11:05:00+00:00", 250_000, "Via Roma 8", "10121", "IT"),
    (
        "A-1004",
        "acme",
        "31.02.2026",
        8_000,
        "Kaiserstraße 1",
        "60311",
        "DE",
    ),  # damaged in the import from the old system
    ("G-2001", "globex", "2026-03-05T08:00:00+00:00", 9_900, "Calle Mayor 3", "28013", "ES"),
]
STOCK = [("lamp", 40), ("desk", 2)]
CARRIER_KEY = "ck_live_5f0b2c9e7a"
"""The API key of the carriers. A service reads such a key from its environment or a vault."""


def open_db(path: str) -> Iterator[sqlite3.Connection]:
    """Open the database, with tables and data if it is new; the container closes it at shutdown."""
    db = sqlite3.connect(path)
    try:
        with db:
            db.executescript(SCHEMA)
            db.executemany("insert or ignore into orders values (?, ?, ?, ?, ?, ?, ?)", ORDERS)
            db.executemany("insert or ignore into stock values (?, ?)", STOCK)
        yield db
    finally:
        db.close()


class AppContainer(containers.DeclarativeContainer):
    """The dependencies that the whole application shares."""

    config = providers.Configuration()
    db = providers.Resource(open_db, path=config.db)


class Carrier(StrEnum):
    """The carrier of a parcel."""

    SWIFT = "swift"
    TORTOISE = "tortoise"


@dataclass(frozen=True)
class Tariff:
    """The price of a carrier, and the response time of its service."""

    base_cents: int
    cents_per_kg: int
    days: int
    answers_in: float


class Carriers:
    """The carriers' services. Today the quotes of ``tortoise`` are slow, and its tracking is down."""

    def __init__(self) -> None:
        self._tariffs = {
            Carrier.SWIFT: Tariff(590, 120, days=2, answers_in=0.03),
            Carrier.TORTOISE: Tariff(290, 80, days=9, answers_in=0.7),
        }
        self._connected = False

    def ask(self, carrier: Carrier, weight_kg: float) -> tuple[int, int]:
        """Return the price in cents and the delivery time in days. The call blocks, as such clients do."""
        tariff = self._tariffs[carrier]
        time.sleep(tariff.answers_in)
        return round(tariff.base_cents + tariff.cents_per_kg * weight_kg), tariff.days

    async def scans(self, carrier: Carrier, parcel: str, key: str) -> list[str]:
        """Return the scans of a parcel and a link. The link carelessly holds the API key, as happens in practice.

        Raises:
            ConnectionError: ``tortoise`` always, ``swift`` at the first request.
        """
        await asyncio.sleep(0.005)
        first, self._connected = not self._connected and carrier is Carrier.SWIFT, True
        if carrier is Carrier.TORTOISE or first:
            raise ConnectionError(f"{carrier} hung up on {key}")
        stops = 40 if parcel == "P-7002" else 2  # shipped long ago
        return [f"seen at depot {stop}" for stop in range(1, stops)] + [f"https://swift.example/{parcel}?key={key}"]
