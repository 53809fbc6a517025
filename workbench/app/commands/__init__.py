"""The subcommands of `workbench`, one file each with a Typer app, imported on call by `app.cli`."""
