"""Triton and Gluon kernels, each with its torch reference. The modules are in the top-level folder `kernels/`.

A module has `launch` (the kernel) and `reference` (the same in torch), whose arguments are in its docstring, and
`cases`, which yields arguments to compare them. B is requests, R rows (query tokens), T keys, D head width.

In an installation that folder is this package (`package-dir` in pyproject.toml); in a checkout this file adds it to the
search path. It has no `__init__.py`: Hugging Face ships a package named `kernels`, which it must not shadow.
"""

from pathlib import Path

_root = Path(__file__).resolve().parents[2]
if (_root / "pyproject.toml").is_file() and (_root / "kernels").is_dir():
    __path__.append(str(_root / "kernels"))
