"""`python -m workbench` is the `workbench` command."""

from workbench.app.cli import main

main()
