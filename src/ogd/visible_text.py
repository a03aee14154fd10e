"""Escape letters in names, paths and messages that would control a terminal."""

import unicodedata


def visible(text: object, keep: str = "") -> str:
    r"""Return a text with every letter that a terminal would obey or hide as an escape, except the letters to keep.

    Examples:
        >>> visible("fashion[v2]"), visible("red\x1b[31m"), visible("half\udcff"), visible("59.0 ± 1.4 °")
        ('fashion[v2]', 'red\\x1b[31m', 'half\\udcff', '59.0 ± 1.4 °')
    """
    written = str(text)
    if written.isprintable():
        return written
    return "".join(letter if letter in keep or _shows(letter) else _escaped(letter) for letter in written)


def is_unicode(text: str) -> bool:
    r"""Return whether a text can be encoded: names of files and arguments may hold bytes that are not letters.

    Examples:
        >>> is_unicode("λ"), is_unicode("half\udcff")
        (True, False)
    """
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shows(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"  # a space that does not break


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
