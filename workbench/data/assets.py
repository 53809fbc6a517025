"""Where the shipped models and corpora lie: names to paths, from a checkout or from an installed wheel, in any folder.

data/models/<name>/             a checkpoint in Hugging Face format, or an adapter as `peft` writes it
data/<corpus>/sample.jsonl      a fixed sample of a corpus
"""

from pathlib import Path

from workbench.core.errors import BadInput

_package, _checkout = Path(__file__).resolve().parents[1:3]
ROOT = _checkout / "data" if (_checkout / "pyproject.toml").is_file() else _package / "shipped"


def models() -> list[str]:
    """Return the names of the shipped models."""
    configs = [*(ROOT / "models").glob("*/config.json"), *(ROOT / "models").glob("*/adapter_config.json")]
    return sorted({config.parent.name for config in configs})


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
