"""Errors that end the program, and safe text for a terminal."""

from __future__ import annotations


class Trouble(Exception):
    """An error that ends the program with one line and exit code 2."""


def shown(text: object) -> str:
    """Make untrusted text safe for a terminal: escape control characters and invalid Unicode."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in str(text)
    )
