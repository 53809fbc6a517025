"""Tables and figures of the papers with their verdicts: counts as bars, and a table with filters, without a script."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from IPython.display import HTML
from jinja2 import Environment

from workbench.experiments.papers import PAPERS, VERDICTS, Answer, counts
from workbench.experiments.papers.cells import address
from workbench.plots.theme import FAINT, GREEN, INK, MUTED, RED, RULE, finish

COLOURS = {"confirmed": GREEN, "contradicted": RED, "unreachable": MUTED}

WORDS = {"confirmed": "yes", "contradicted": "no", "unreachable": "open"}

STYLE = """
<style>
.papers { font: 13px/1.45 system-ui, sans-serif; color: {{ ink }}; background: #fff; padding: 8px; }
.papers fieldset { border: 0; margin: 0 0 6px; padding: 0; } .papers label { margin-right: 14px; }
.papers table { border-collapse: collapse; width: 100%; table-layout: fixed; }
.papers table th, .papers table td { text-align: left !important; vertical-align: top; padding: 5px 8px;
  border-bottom: 1px solid {{ rule }}; white-space: normal; overflow-wrap: break-word; }
.papers th { position: sticky; top: 0; background: #fff; }
.papers tbody tr:hover { background: {{ faint }}; }
.papers ul { margin: 0; padding-left: 14px; } .papers .beside, .papers .why { color: {{ muted }}; }
{%- for verdict, colour in colours.items() %} .papers .{{ verdict }} b { color: {{ colour }}; }{% endfor %}
{%- for group, names in filters.items() %}{% for name in names %}
.papers:has(.pick-{{ group }}-{{ name }}:checked) tbody tr:not(.{{ name }}) { display: none; }
{%- endfor %}{% endfor %}
</style>"""

TABLE = """
<div class="papers">
{%- for group, names in filters.items() %}
<fieldset><label><input type="radio" name="{{ stem }}{{ group }}" class="pick-{{ group }}-all"
 {%- if chosen[group] == "all" %} checked{% endif %}> all</label>
{%- for name, shown in names.items() %}<label><input type="radio" name="{{ stem }}{{ group }}"
 class="pick-{{ group }}-{{ name }}"{% if chosen[group] == name %} checked{% endif %}> {{ shown }}</label>
{%- endfor %}</fieldset>
{%- endfor %}
<table><colgroup><col style="width:13%"><col style="width:18%"><col style="width:13%"><col style="width:41%">
<col style="width:15%"></colgroup><thead><tr><th>item</th><th>claim</th><th>published</th>
<th>ours, with 95% interval (times: 5th to 95th percentile; of fewer
 than 20 runs the range, where it was kept)</th><th>verdict</th></tr></thead><tbody>
{%- for row in rows %}
<tr class="{{ row.paper }} {{ row.verdict }}"><td>{{ row.name }}<br><span class="why">{{ row.title }}</span></td>
<td>{{ row.claim }}</td><td>{{ row.published }}</td><td>{% if row.findings %}<ul>
{%- for found in row.findings %}<li{% if not found.decides %} class="beside"{% endif %}>{{ found.text }}
 → {{ words[found.verdict] }}{% if not found.decides %} (shown only){% endif %}</li>{% endfor %}</ul>{% endif %}</td>
<td><b>{{ row.verdict }}</b>{% if row.in_part %} in part{% endif %}{% if row.label %} ({{ row.label }}){% endif %}
{%- for href, text in row.links %}<br><a href="{{ href }}">{{ text }}</a>{% endfor %}
{%- if row.reason %}<br><span class="why">{{ row.reason }}</span>{% endif %}</td></tr>
{%- endfor %}</tbody></table></div>"""


def listing(judged: Sequence[Answer], *, paper: str = "all", verdict: str = "all", live: bool = False) -> HTML:
    """Draw a row an item, with filters by paper and verdict, and a link to the cell of each.

    paper, verdict   chosen at the start; "all" or a name of PAPERS, of VERDICTS
    live             links lead to notebooks in Jupyter, else to the pages of a report
    """
    filters = {"paper": PAPERS, "verdict": dict.fromkeys(VERDICTS)}
    filters["verdict"] = {name: f"{name} ({counts(judged)[name]})" for name in VERDICTS}
    shown = {"filters": filters, "chosen": {"paper": paper, "verdict": verdict}, "stem": "papers-by-"}
    shown |= {"ink": INK, "rule": RULE, "faint": FAINT, "muted": MUTED, "colours": COLOURS}
    shown |= {"words": WORDS}
    made = Environment(autoescape=True).from_string(STYLE + TABLE)
    return HTML(made.render(rows=[_row(answer, live) for answer in judged], **shown))


def _row(answer: Answer, live: bool) -> dict[str, Any]:
    item = answer.item
    row = {"paper": item.paper, "title": PAPERS[item.paper], "name": item.name, "claim": item.claim}
    more: dict[str, Any] = {"published": item.published, "findings": answer.findings, "in_part": answer.in_part}
    more |= {"verdict": answer.verdict, "label": answer.label, "reason": answer.reason}
    links = [(address(cell, live), f"notebook {cell[0][:2]}") for cell in answer.cells]
    return {**row, **more, "links": links}


def verdicts(judged: Sequence[Answer]) -> go.Figure:
    """Draw how many items of every paper are confirmed, contradicted and out of reach."""
    found = Counter((answer.item.paper, answer.verdict) for answer in judged)
    fig = go.Figure()
    names = [escape(name) for name in PAPERS.values()]
    for verdict, colour in COLOURS.items():
        numbers = [found[paper, verdict] for paper in PAPERS]
        texts = [str(number) if number else "" for number in numbers]
        bar = {"x": numbers, "y": names, "orientation": "h", "text": texts, "textposition": "inside"}
        fig.add_bar(**bar, name=verdict, marker_color=colour, insidetextanchor="middle", textangle=0)
    fig.update_layout(barmode="stack", bargap=0.35, yaxis_autorange="reversed", legend_traceorder="normal")
    fig.update_xaxes(title_text="numbered tables and figures")
    total, labels = counts(judged), Counter(answer.label or "nothing of ours" for answer in judged)
    return finish(
        fig,
        title=f"{total['items']} tables and figures of five papers",
        notice=said(judged),
        caption="A claim is confirmed where the 95% interval of our number lies on the claimed side of its bar, "
        "contradicted where it lies on the other. Measured on: "
        + ", ".join(f"{label} {number}" for label, number in labels.most_common())
        + ".",
        height=220,
        left=190,
        legend=6,
    )


def said(judged: Sequence[Answer]) -> str:
    """Say how many items hold, and name those that do not."""
    total = counts(judged)
    against = [f"{PAPERS[x.item.paper]} {x.item.name.lower()}" for x in judged if x.verdict == "contradicted"]
    named = f": {', '.join(against)}" if against else ""
    return (
        f"{total['confirmed']} are confirmed, {total['contradicted']} contradicted{named}. {total['unreachable']} are "
        f"out of reach. Of {total['in_part']} that are decided a part is out of reach."
    )
