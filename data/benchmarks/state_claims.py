"""Date the new and changed claims of data/claims.json, so that results older than their claim are marked.

python data/benchmarks/state_claims.py
"""

import json
from datetime import UTC, datetime

from workbench.core.utils.files import write_text
from workbench.experiments.judging.claim_file import FILE, digest


def line(row: dict[str, object], methods: dict[str, object]) -> str:
    """Return a claim as one line; its date is kept while its digest is unchanged."""
    known = str(row.get("stated", "")).partition(" ")
    if known[2] != digest(row, methods):
        row["stated"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S} {digest(row, methods)}"
    return f"  {json.dumps(row, ensure_ascii=False)}"


def main() -> None:
    """Rewrite the file, one line per claim."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    methods = ",\n ".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in content["methods"].items())
    items = []
    for item in content["items"]:
        claims = item.pop("claims", [])
        rows = "\n" + ",\n".join(line(row, content["methods"]) for row in claims) + "\n " if claims else ""
        items.append(f' {json.dumps(item, ensure_ascii=False)[:-1]}, "claims": [{rows}]}}')
    text = f'{{\n"papers": {json.dumps(content["papers"])},\n"methods": {{\n {methods}\n}},\n"items": [\n'
    write_text(FILE, text + ",\n".join(items) + "\n]\n}\n")


if __name__ == "__main__":
    main()
