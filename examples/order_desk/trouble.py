"""What stands between a user and a run, in words."""

from __future__ import annotations


class Trouble(Exception):
    """Ends the program with one line and exit code 2."""


def shown(text: object) -> str:
    """Text from outside, safe for a terminal: control characters and broken Unicode are spelt out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in str(text)
    )
