"""The picture in the README: the top of the report's index, as `make report` leaves it."""

import sys
from pathlib import Path

from workbench.thumbnail import screenshot

INDEX, PICTURE = Path("runs/report/index.html"), Path("docs/overview.png")

if __name__ == "__main__" and not screenshot(INDEX, PICTURE, width=1200, height=520):
    sys.exit(f"{PICTURE} was not drawn: it needs Chromium and {INDEX}")
