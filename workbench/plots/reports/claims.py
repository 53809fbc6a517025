"""Judged claims as a list with filters, without a script: a line an item, which opens to all that was measured.

Cells name the items that they show in their metadata: {"workbench": {"answers": ["fusionrag-fig-16"]}}.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.display import HTML
from jinja2 import Environment

from workbench.core.errors import BadInput
from workbench.experiments.judging.claims import (
    CONFIRMED,
    CONTRADICTED,
    OPEN,
    VERDICTS,
    Judged,
    items,
    papers,
    verdict,
)
from workbench.plots.marks.styles import Look, Looks
from workbench.plots.marks.theme import GREEN, MUTED, RED

LOOKS = Looks(
    {CONFIRMED: Look(GREEN, name=CONFIRMED), CONTRADICTED: Look(RED, name=CONTRADICTED), OPEN: Look(MUTED, name=OPEN)}
)
WORDS = {CONFIRMED: "yes", CONTRADICTED: "no", OPEN: "open"}
Cell = tuple[str, str]  # notebook without its ending, id of the cell

STYLE = """
<style>
.claims { font: 14px/1.45 system-ui, sans-serif; }
.claims fieldset { border: 0; margin: 0 0 6px; padding: 0; } .claims label { margin-right: 14px; white-space: nowrap; }
.claims details, .claims .head { border-bottom: 1px solid #8884; }
.claims summary, .claims .head { display: grid; gap: 0 16px; padding: 5px 4px; align-items: start;
  grid-template-columns: 150px minmax(200px, 1fr) minmax(200px, 1fr) 120px; }
.claims summary { cursor: pointer; list-style: none; } .claims summary:hover { background: #8881; }
.claims summary::-webkit-details-marker { display: none; }
.claims .head { font-weight: 600; }
.claims .body { padding: 2px 4px 12px 20px; } .claims ul { margin: 4px 0; padding-left: 16px; }
.claims .why { opacity: 0.75; }
.claims .verdict::before { content: "▸ "; } .claims [open] .verdict::before { content: "▾ "; }
{%- for verdict, look in looks.items() %} .claims .{{ verdict }} .verdict { color: {{ look.colour }}; }{% endfor %}
.claims .verdict { font-weight: 600; filter: brightness(var(--claims-light, 1)); }
@media (prefers-color-scheme: dark) { :root:not([data-jp-theme-light]) .claims { --claims-light: 1.5; } }
@media (max-width: 900px) { .claims summary, .claims .head { grid-template: auto 1fr / 90px 1fr 110px; }
  .claims summary > :first-child { grid-row: 1 / 3; } .claims .number { grid-column: 2 / 4; grid-row: 2; }
  .claims .head .number { display: none; } }
{%- for group, names in filters.items() %}{% for name in names %}
.claims:has(.pick-{{ group }}-{{ name }}:checked) details:not(.{{ name }}) { display: none; }
{%- endfor %}{% endfor %}
</style>"""

TABLE = """
<div class="claims">
{%- for group, names in filters.items() %}
<fieldset><label><input type="radio" name="claims-by-{{ group }}" class="pick-{{ group }}-all"
 {%- if chosen[group] == "all" %} checked{% endif %}> all</label>
{%- for name, shown in names.items() %} <label><input type="radio" name="claims-by-{{ group }}"
 class="pick-{{ group }}-{{ name }}"{% if chosen[group] == name %} checked{% endif %}> {{ shown }}</label>
{%- endfor %}</fieldset>
{%- endfor %}
<div class="head"><span>item</span><span>claim</span><span class="number">what decides, with its interval</span>
<span>verdict</span></div>
{%- for row in rows %}
<details class="{{ row.item.paper }} {{ row.verdict }}"><summary><span>{{ row.item.name }}<br>
<span class="why">{{ row.paper }}</span></span><span>{{ row.item.sentence }}</span>
<span class="number">{{ row.number }}</span><span class="verdict">{{ row.verdict }}</span></summary>
<div class="body">{% if row.item.published %}<p>Published: {{ row.item.published }}</p>{% endif %}
{%- if row.judged %}<ul>
{%- for one in row.judged %}<li{% if not one.decides %} class="why"{% endif %}>{{ one.text }}
 → {{ words[one.verdict] }}{% if one.number and one.needs %}; {{ one.needs }}{% endif %}
{%- if one.number and not one.decides %} (shown only){% endif %}</li>{% endfor %}</ul>{% endif %}
{%- if row.item.missing %}<p class="why">{{ row.item.missing }}</p>{% endif %}
{%- if several %}<p class="why">Results: {{ row.source }}</p>{% endif %}
{%- if row.links %}<p>Drawn in{% for href, text in row.links %} <a href="{{ href }}">{{ text }}</a>{% endfor %}</p>
{%- endif %}</div></details>
{%- endfor %}
<p class="why">A line opens on a click. Intervals are 95%; of times, from the 5th to the 95th percentile, and of fewer
than 20 runs their range, where it was kept.</p></div>"""


def listing(
    judged: Sequence[Judged], notebooks: str | Path, *, paper: str = "all", verdict: str = "all", live: bool = False
) -> HTML:
    """Draw a row an item and source, with filters by paper and verdict, and links to the cells that show it.

    notebooks        folder of the notebooks
    paper, verdict   chosen at the start; "all", or a name of `claims.papers()`, of VERDICTS
    live             links lead to notebooks in Jupyter, else to the pages of a report
    """
    rows, cells = listed(judged), shown_in(notebooks)
    for row in rows:
        row["links"] = [(address(cell, live), f"notebook {cell[0][:2]}") for cell in cells.get(row["item"].item, [])]
    counted = {name: f"{name} ({sum(row['verdict'] == name for row in rows)})" for name in VERDICTS}
    shown = {"filters": {"paper": papers(), "verdict": counted}, "chosen": {"paper": paper, "verdict": verdict}}
    shown |= {"looks": LOOKS, "words": WORDS}
    shown |= {"rows": rows, "several": len({row["source"] for row in rows}) > 1}
    return HTML(Environment(autoescape=True).from_string(STYLE + TABLE).render(**shown))


def listed(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Return a row an item and source: {key, item, paper, title, source, kind, verdict, number, judged, value: 1}.

    `title` names the paper, and whether the item shows how a method works (held by tests) or what it gives.
    """
    rows = []
    sources = list(dict.fromkeys(one.source for one in judged))
    for item in items():
        for source in sources:
            own = [one for one in judged if one.claim.item == item.item and one.source == source]
            about = {"key": item.item, "item": item, "paper": papers()[item.paper], "source": source}
            kind = "how it works" if item.is_mechanism else "findings"
            title = f"{about['paper']}: {kind}" + (f" · {source}" if len(sources) > 1 else "")
            said = verdict(own)
            about |= {"verdict": said, "kind": kind, "title": title, "number": _number(own, said)}
            rows.append({**about, "judged": own, "value": 1})
    return rows


def _number(judged: Sequence[Judged], said: str) -> str:
    """Return the number that decides: of those with the verdict of the item, the one with most questions or runs."""
    measured = [one for one in judged if one.number is not None]
    deciding = [one for one in measured if one.verdict == said and one.decides] or measured
    if not deciding:
        return "held by tests" if any(one.decides for one in judged) else "not measured"
    best = max(deciding, key=lambda one: one.number.n if one.number else 0)
    more = len([one for one in measured if one.decides]) - best.decides
    return best.short + (f"; {more} more" if more > 0 else "")


def shown_in(folder: str | Path) -> dict[str, list[Cell]]:
    """Read the notebooks of a folder: {item: cells that show it}, in their order.

    Raises BadInput for a folder without notebooks, and for a cell that names what is no item.
    """
    paths = sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise BadInput(f"{folder} holds no notebooks: the folder of 01_masks.ipynb and the others is needed")
    found: dict[str, list[Cell]] = {}
    known = {item.item for item in items()}
    for path in paths:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name in _answers(cell, path):
                if name not in known:
                    raise BadInput(f"a cell answers {name!r}: there is no such figure or table")
                found.setdefault(name, []).append((path.stem, cell["id"]))
    return found


def _answers(cell: Mapping[str, Any], path: Path) -> Iterable[str]:
    named = cell["metadata"].get("workbench", {}).get("answers", [])
    if not isinstance(named, list) or not all(isinstance(key, str) for key in named):
        raise BadInput(f"{path.name}, cell {cell.get('id')}: answers is {named!r}; a list of names is needed")
    return named


def address(cell: Cell, live: bool) -> str:
    """Return where a cell stands, seen from another notebook: in Jupyter (`live`), or from its page in a report."""
    notebook, number = cell
    place = f"{notebook}.ipynb" if live else f"../{notebook}/{notebook}.html"
    return f"{place}#cell-id={number}"
