"""What a person touches: the command line, explorers, notebooks, the report."""
