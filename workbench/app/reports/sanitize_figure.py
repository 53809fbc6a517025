"""Figures as data for a page: of tags, only plotly's plain ones are drawn; whatever links, loads or runs stays text."""

import re
from typing import Any

PLAIN = re.compile(r"</?(?:b|i|u|s|em|strong|sub|sup|br|extra)\s*/?>", re.IGNORECASE)
TAG = re.compile(r"<(?=[a-zA-Z/!])[^<>]*>?")


def inert(value: Any) -> Any:
    """Return plotly's JSON with every other tag, and every attribute, as text."""
    if isinstance(value, dict):
        return {name: inert(each) for name, each in value.items()}
    if isinstance(value, list):
        return [inert(each) for each in value]
    return TAG.sub(_kept, value) if isinstance(value, str) and "<" in value else value


def _kept(found: re.Match[str]) -> str:
    return found[0] if PLAIN.fullmatch(found[0]) else "&lt;" + found[0][1:]
