"""User interfaces: the command line, explorers, notebooks, the report."""
