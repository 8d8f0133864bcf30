"""A light stemmer for English: Porter's first steps and the most common endings."""

from __future__ import annotations

_VOWELS = frozenset("aeiou")
_DOUBLES = frozenset("bdfgmnprt")
_LONG = (  # ending and replacement; the first match applies, where enough of the word is left
    ("ational", "ate"),
    ("ization", "ize"),
    ("isation", "ize"),
    ("fulness", "ful"),
    ("iveness", "ive"),
    ("ousness", "ous"),
    ("tional", "tion"),
    ("biliti", "ble"),
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ation", "ate"),
    ("aliti", "al"),
    ("ator", "ate"),
    ("alli", "al"),
    ("entli", "ent"),
    ("ousli", "ous"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
)
_LAST = tuple("ement ance ence able ible ment ant ent ism ate iti ous ive ize ise al er ic or".split())


def stem(word: str) -> str:
    """Return the stem of a lower-case word; words of other scripts, numbers and short words stay unchanged."""
    if len(word) < 4 or not word.isascii() or not word.isalpha() or word == "news":  # not the plural of "new"
        return word
    word = _past(_plural(word))
    if word[-1] == "y" and len(word) > 2 and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    for ending, instead in _LONG:
        if word.endswith(ending):
            if _measure(word[: -len(ending)]):
                word = word[: -len(ending)] + instead
            break
    else:
        if word.endswith("li") and len(word) > 5:
            word = word[:-2]
    return _shorter(word)


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and word[-2] not in "su":
        return word[:-1]
    return word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for ending in ("ing", "ed"):
        if word.endswith(ending) and any(letter in _VOWELS or letter == "y" for letter in word[: -len(ending)]):
            left = word[: -len(ending)]
            if left.endswith(("at", "bl", "iz")):
                return left + "e"
            if len(left) > 2 and left[-1] == left[-2] and left[-1] in _DOUBLES:
                return left[:-1]
            return left + "e" if _measure(left) == 1 and _closes(left) else left
    return word


def _shorter(word: str) -> str:
    """Remove one last ending and a silent e, where two syllables are left."""
    for ending in _LAST:
        if word.endswith(ending):
            if _measure(word[: -len(ending)]) > 1:
                word = word[: -len(ending)]
            break
    else:
        if word.endswith(("sion", "tion")) and _measure(word[:-3]) > 1:
            word = word[:-3]
    if word.endswith("e"):
        left = word[:-1]
        measure = _measure(left)
        if measure > 1 or (measure == 1 and not _closes(left)):
            word = left
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


def _measure(text: str) -> int:
    """Count the changes from a vowel to a consonant, roughly the syllables."""
    found, was_vowel = 0, False
    for place, letter in enumerate(text):
        vowel = letter in _VOWELS or (letter == "y" and place > 0 and not was_vowel)
        found += was_vowel and not vowel
        was_vowel = vowel
    return found


def _closes(text: str) -> bool:
    """True for consonant, vowel, consonant at the end, where a silent e was removed: "mak" of "making"."""
    if len(text) < 3:
        return False
    first, second, third = text[-3], text[-2], text[-1]
    return first not in _VOWELS and (second in _VOWELS or second == "y") and third not in _VOWELS and third not in "wxy"
