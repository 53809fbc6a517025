"""The README's Python runs, and so does what earlier READMEs said."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)
# sentences of earlier versions
EARLIER = [
    (
        "request = pool.open(blocks, reserve=len(prompt.question) + 16)",
        "request = pool.open(blocks, room=len(prompt.question) + 16)",
    ),
    ("workbench.experiments.sweep", "workbench.sweep"),
    ("workbench.experiments.trial", "workbench.trial"),
    ('["after_system", "with_neighbours"]', '["isolated", "similar"]'),
]


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


def test_snippets_of_earlier_versions_still_run(monkeypatch, tmp_path, capsys):
    earlier = "\n---\n".join(SNIPPETS).replace("[0.05, 0.15]", "[0.15]")
    for today, before in EARLIER:
        assert today in earlier
        earlier = earlier.replace(today, before)
    assert "rows_computed" in run(earlier.split("\n---\n"), monkeypatch, tmp_path, capsys)
