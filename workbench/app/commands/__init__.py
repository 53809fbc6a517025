"""The subcommands of `workbench`, one file each with a Typer app; `app.cli` imports the one that is called."""
