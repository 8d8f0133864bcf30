"""A small library: its tools and its policies. This module is independent of models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from callgate import Effects, Gate, Provide, ToolContext, ToolError, User, tool
from callgate.hooks import Authorize, forbid, permit

READER = User("ann", roles={"reader"})
LONGEST = 28
BookId = Annotated[str, Field(pattern="^B-[0-9]$", description="Such as B-1.")]
Days = Annotated[int, Field(ge=1, le=365)]


@dataclass
class Shelves:
    """The books, the available copies, and the loans with their due dates."""

    titles: dict[str, str] = field(
        default_factory=lambda: {"B-1": "Solaris", "B-2": "Roadside Picnic", "B-3": "The Invincible"}
    )
    copies: dict[str, int] = field(default_factory=lambda: {"B-1": 1, "B-2": 2, "B-3": 0})
    loans: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


House = Annotated[Shelves, Provide[Shelves]]


@tool(effect="read")
async def find_book(title: str, *, shelves: House) -> dict[str, Any]:
    """Look for a book by its title, or a part of it."""
    for book_id, name in shelves.titles.items():
        if title.strip().lower() in name.lower():
            return {"book_id": book_id, "title": name, "copies": shelves.copies[book_id]}
    raise ToolError("There is no such book.", code="no_such_book")


@tool(effect="keyed", key=("book_id",), parallel=False)
async def lend(book_id: BookId, days: Days, *, shelves: House, ctx: ToolContext) -> dict[str, Any]:
    """Lend a book to the caller, for a number of days."""
    if not shelves.copies.get(book_id):
        raise ToolError("No copy is in.", code="not_in")
    shelves.copies[book_id] -= 1
    shelves.loans[ctx.user.id, book_id] = days
    return {"book_id": book_id, "title": shelves.titles[book_id], "days": days}


@tool(effect="irreversible", key=("book_id",))
async def discard(book_id: BookId, *, shelves: House) -> str:
    """Take a book out of the catalogue."""
    return f"{shelves.titles.pop(book_id)} is gone"


def library(shelves: Shelves) -> Gate:
    """Make the gate: tools, policies and dependencies. The definitions for a reader's model omit ``discard``."""
    authorize = Authorize(
        permit("readers", roles={"reader"}, tools={"find_book", "lend"}),
        permit("librarians", roles={"librarian"}),
        forbid("long-loans", tools={"lend"}, when_input=lambda user, tool, given: given["days"] > LONGEST),
        public=f"The house does not allow that. Books go out for at most {LONGEST} days.",
    )
    return Gate(
        [find_book, lend, discard],
        [authorize],
        provide={Shelves: lambda: shelves},
        effects=Effects(durable=False),
        deadline=5,
    )
