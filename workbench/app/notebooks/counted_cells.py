"""A papermill engine that writes its progress to a file: "7 30 The prompt" (cells ended, cells, last heading)."""

import re
from pathlib import Path
from typing import Any

from papermill.engines import NBClientEngine, papermill_engines

NAME = "counted cells"
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


class CountedCells(NBClientEngine):
    """Runs a notebook as papermill does, and rewrites the file `counted` after every cell."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, counted: str = "", **options: Any) -> Any:
        complete, cells = nb_man.cell_complete, nb_man.nb.cells
        said = ""

        def completed(cell: Any, cell_index: int | None = None, **more: Any) -> None:
            nonlocal said
            complete(cell, cell_index, **more)
            if cell.cell_type == "markdown" and (headings := HEADING.findall(cell.source)):
                said = headings[-1]
            if counted and cell_index is not None:
                Path(counted).write_text(f"{cell_index + 1} {len(cells)} {said}", encoding="utf-8")

        nb_man.cell_complete = completed
        return super().execute_managed_notebook(nb_man, kernel_name, **options)


papermill_engines.register(NAME, CountedCells)
