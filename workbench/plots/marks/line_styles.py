"""Looks of the lines of one figure: colours, symbols and dashes by name, lines of one family told apart."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypedDict

from workbench.plots.marks.styles import SELECTORS, SYMBOLS, Look
from workbench.plots.marks.theme import INK, PAPER, mixed


class LineLooks(TypedDict):
    """Looks by name, as `lines.profiles` takes them."""

    colours: dict[str, str]
    symbols: dict[str, str]
    dashes: dict[str, str]


DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TINTS = (None, INK, PAPER)  # what the colour of further lines of a family is mixed with


def family_looks(named: Iterable[tuple[str, Look]]) -> dict[str, Look]:
    """Return looks by name, told apart where several have one colour, symbol and dash, as variants of one method do.

    Further lines of a family are dashed otherwise, their marks are hollow or of another shape, and their colour is
    darker or lighter.
    """
    looks: dict[str, Look] = {}
    taken: dict[tuple[str, str, str], int] = {}
    for name, look in named:
        key = look.colour, look.symbol, look.dash
        number = taken[key] = taken.get(key, -1) + 1
        looks[name] = _variant(look, number) if name not in looks else looks[name]
    return looks


def _variant(look: Look, number: int) -> Look:
    if not number:
        return look
    shape = look.symbol.removesuffix("-open")
    at = SYMBOLS.index(shape) if shape in SYMBOLS else 0
    symbol = f"{shape}-open" if number == 1 and shape == look.symbol else SYMBOLS[(at + 3 * number) % len(SYMBOLS)]
    tint = TINTS[number % len(TINTS)]
    colour = mixed(look.colour, tint, 0.4) if tint else look.colour
    dash = DASHES[(DASHES.index(look.dash) + number) % len(DASHES)]
    return replace(look, colour=colour, symbol=symbol, dash=dash)


def line_looks(looks: Iterable[Look]) -> LineLooks:
    """Return colours, symbols and dashes by name; lines of one family are told apart."""
    by_name = family_looks((look.name, look) for look in {look.name: look for look in looks}.values())
    colours, symbols, dashes = (
        {name: getattr(by_name[name], of) for name in by_name} for of in ("colour", "symbol", "dash")
    )
    return {"colours": colours, "symbols": symbols, "dashes": dashes}


def selector_looks(specs: Iterable[str]) -> LineLooks:
    """Return the colours and symbols of selectors by name."""
    return line_looks(map(SELECTORS.of, specs))
