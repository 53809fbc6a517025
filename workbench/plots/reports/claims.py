"""Judged claims as a table with filters, without a script: a row an item of a paper, with links to the cells it is in.

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
    PaperItem,
    items,
    papers,
    verdict,
)
from workbench.plots.marks.styles import Look, Looks
from workbench.plots.marks.theme import FAINT, GREEN, INK, MUTED, RED, RULE

LOOKS = Looks(
    {CONFIRMED: Look(GREEN, name=CONFIRMED), CONTRADICTED: Look(RED, name=CONTRADICTED), OPEN: Look(MUTED, name=OPEN)}
)
WORDS = {CONFIRMED: "yes", CONTRADICTED: "no", OPEN: "open"}
Cell = tuple[str, str]  # notebook without its ending, id of the cell

STYLE = """
<style>
.claims { font: 13px/1.45 system-ui, sans-serif; color: {{ ink }}; background: #fff; padding: 8px; }
.claims fieldset { border: 0; margin: 0 0 6px; padding: 0; } .claims label { margin-right: 14px; }
.claims table { border-collapse: collapse; width: 100%; table-layout: fixed; }
.claims table th, .claims table td { text-align: left !important; vertical-align: top; padding: 5px 8px;
  border-bottom: 1px solid {{ rule }}; white-space: normal; overflow-wrap: break-word; }
.claims th { position: sticky; top: 0; background: #fff; }
.claims tbody tr:hover { background: {{ faint }}; }
.claims ul { margin: 0; padding-left: 14px; } .claims .beside, .claims .why { color: {{ muted }}; }
{%- for verdict, look in looks.items() %} .claims .{{ verdict }} b { color: {{ look.colour }}; }{% endfor %}
{%- for group, names in filters.items() %}{% for name in names %}
.claims:has(.pick-{{ group }}-{{ name }}:checked) tbody tr:not(.{{ name }}) { display: none; }
{%- endfor %}{% endfor %}
</style>"""

TABLE = """
<div class="claims">
{%- for group, names in filters.items() %}
<fieldset><label><input type="radio" name="claims-by-{{ group }}" class="pick-{{ group }}-all"
 {%- if chosen[group] == "all" %} checked{% endif %}> all</label>
{%- for name, shown in names.items() %}<label><input type="radio" name="claims-by-{{ group }}"
 class="pick-{{ group }}-{{ name }}"{% if chosen[group] == name %} checked{% endif %}> {{ shown }}</label>
{%- endfor %}</fieldset>
{%- endfor %}
<table><colgroup><col style="width:13%"><col style="width:18%"><col style="width:13%"><col style="width:41%">
<col style="width:15%"></colgroup><thead><tr><th>item</th><th>claim</th><th>published</th>
<th>measured, with 95% interval (times: 5th to 95th percentile; of fewer
 than 20 runs the range, where it was kept)</th><th>verdict</th></tr></thead><tbody>
{%- for row in rows %}
<tr class="{{ row.item.paper }} {{ row.verdict }}"><td>{{ row.item.name }}<br>
<span class="why">{{ row.paper }}</span></td>
<td>{{ row.item.sentence }}</td><td>{{ row.item.published }}</td><td>{% if row.judged %}<ul>
{%- for one in row.judged %}<li{% if not one.decides %} class="beside"{% endif %}>{{ one.text }}
 → {{ words[one.verdict] }}{% if one.number and one.needs %}; {{ one.needs }}{% endif %}
{%- if one.number and not one.decides %} (shown only){% endif %}</li>{% endfor %}</ul>{% endif %}</td>
<td><b>{{ row.verdict }}</b>{% if several %} ({{ row.source }}){% endif %}
{%- for href, text in row.links %}<br><a href="{{ href }}">{{ text }}</a>{% endfor %}
{%- if row.item.missing %}<br><span class="why">{{ row.item.missing }}</span>{% endif %}</td></tr>
{%- endfor %}</tbody></table></div>"""


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
    shown |= {"ink": INK, "rule": RULE, "faint": FAINT, "muted": MUTED, "looks": LOOKS, "words": WORDS}
    shown |= {"rows": rows, "several": len({row["source"] for row in rows}) > 1}
    return HTML(Environment(autoescape=True).from_string(STYLE + TABLE).render(**shown))


def listed(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Return a row an item and source: {key, item, paper, title, source, kind, verdict, judged, value: 1}.

    `title` names the paper, and whether the item shows how a method works (held by tests) or what it gives.
    """
    rows = []
    sources = list(dict.fromkeys(one.source for one in judged))
    for item in items():
        for source in sources:
            own = [one for one in judged if one.claim.item == item.item and one.source == source]
            about = {"key": item.item, "item": item, "paper": papers()[item.paper], "source": source}
            kind = _kind(item)
            title = f"{about['paper']}: {kind}" + (f" · {source}" if len(sources) > 1 else "")
            rows.append({**about, "verdict": verdict(own), "kind": kind, "title": title, "judged": own, "value": 1})
    return rows


def _kind(item: PaperItem) -> str:
    kinds = {claim.kind for claim in item.claims}
    return "how it works" if kinds == {"mechanism"} else "findings"


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
