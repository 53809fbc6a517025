"""The README's Python runs."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


def run(snippets: list[str], monkeypatch, folder: Path, capsys) -> str:
    monkeypatch.chdir(folder)
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet.replace("samples=100", "samples=2"), "README.md", "exec"), names)
    assert len(names["tokens"]) and all(answer.text for answer in names["answers"])
    assert (names["table"].n[names["table"].kind == "all"] == 2).all()
    return capsys.readouterr().out


def test_its_snippets_run(monkeypatch, tmp_path, capsys):
    assert len(SNIPPETS) == 3
    assert "rows_computed" in run(SNIPPETS, monkeypatch, tmp_path, capsys)
