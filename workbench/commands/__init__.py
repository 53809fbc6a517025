"""The subcommands of `workbench`, one file each with a Typer app; `workbench.cli` imports the one that is called."""
