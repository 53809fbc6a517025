"""Triton kernels, each beside its torch reference. The modules lie in the top-level folder `kernels/`.

Installed, that folder *is* this package (`package-dir` in pyproject.toml). From a checkout this file stands in for it
and adds the folder to the search path. The folder itself has no `__init__.py`: Hugging Face ships a package named
`kernels` that transformers looks for, and ours must not shadow it.
"""

from pathlib import Path

_root = Path(__file__).resolve().parents[2]
if (_root / "pyproject.toml").is_file() and (_root / "kernels").is_dir():
    __path__.append(str(_root / "kernels"))
