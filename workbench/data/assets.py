"""Paths of shipped and fetched models and corpora, in a checkout and in an installed wheel.

data/models/<name>/             a checkpoint in Hugging Face format, an adapter as `peft` writes it, or soft tokens
data/<corpus>/sample.jsonl      a fixed sample of a corpus
cache()/models/<name>/          a checkpoint that was fetched
"""

import os
from pathlib import Path

from workbench.core.errors import BadInput, format_value
from workbench.core.utils.files import is_dir, is_file

_package, _checkout = Path(__file__).resolve().parents[1:3]
CACHE = "WORKBENCH_CACHE"  # environment variable: folder for downloads
SHIPPED = "shipped"  # source of the shipped results
ROOT = _checkout / "data" if (_checkout / "pyproject.toml").is_file() else _package / "shipped"


def cache() -> Path:
    """Return the folder for fetched models: `WORKBENCH_CACHE`, else the platform's user cache."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path  # optional on machines that run a converted model

    return user_cache_path("workbench")


def models() -> list[str]:
    """Return the names of the shipped models."""
    held = ("config.json", "adapter_config.json", "soft_tokens.safetensors")
    return sorted({file.parent.name for name in held for file in (ROOT / "models").glob(f"*/{name}")})


def corpora() -> list[str]:
    """Return the names of the shipped corpora."""
    return sorted(sample.parent.name for sample in ROOT.glob("*/sample.jsonl"))


def model_path(name: str) -> Path:
    """Return the folder of the shipped model `name`, e.g. `lab-full`."""
    if name not in models():
        raise BadInput(f"unknown model {name!r}: shipped are {', '.join(models()) or 'none'}")
    return ROOT / "models" / name


def corpus_path(name: str) -> Path:
    """Return the JSON-lines file of the shipped corpus `name`, e.g. `lab`."""
    if name not in corpora():
        raise BadInput(f"unknown corpus {name!r}: shipped are {', '.join(corpora()) or 'none'}")
    return ROOT / name / "sample.jsonl"


def results_path(place: str | Path) -> Path:
    """Return the folder of results at "shipped", FOLDER or NAME=FOLDER. Raises BadInput where it is missing."""
    name, equals, given = str(place).partition("=")
    path = ROOT / "benchmarks" if str(place) == SHIPPED else Path(given if equals else name)
    if not is_dir(path):
        raise BadInput(
            f"no results at {format_value(str(path))}: a folder that `--out` wrote, or {SHIPPED!r}, is needed"
        )
    return path


def tokenizer_file(model: str) -> Path:
    """Return `tokenizer.json` of a checkpoint folder, of a shipped model or of a fetched one. Raises BadInput."""
    folders = (Path(model), ROOT / "models" / model, cache() / "models" / model)
    for file in (folder / "tokenizer.json" for folder in folders):
        if is_file(file):
            return file
    raise BadInput(
        f"model {format_value(model)} has no tokenizer.json here: a checkpoint folder, a shipped model "
        f"({', '.join(models())}) or a fetched one is needed; an adapter's is its base model's"
    )
