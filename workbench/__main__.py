"""`python -m workbench`, and what is installed as `workbench`: the `workbench` command.

Ctrl-C is heard from here on, before anything that takes long to import.
"""

from workbench.app.console import at_once


def main() -> None:
    """Run the `workbench` command; Ctrl-C while it is imported ends it in one line."""
    at_once.end_on_interrupt()
    from workbench.app import cli

    cli.main()


if __name__ == "__main__":
    main()
