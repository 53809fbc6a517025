"""Versions of installed packages."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

COMPUTING = ("cached-block-workbench", "torch", "transformers")  # packages that affect blocks and measurements


@cache
def version_of(package: str) -> str | None:
    """Return the version of a package; None if it is not installed, as in a plain checkout."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions(packages: Iterable[str] = COMPUTING) -> dict[str, str]:
    """Return {package: version}, or "not installed"."""
    return {package: version_of(package) or "not installed" for package in packages}
