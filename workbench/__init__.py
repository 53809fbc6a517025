"""A workbench for cached-block attention: reuse, move, recompute and sparsely attend a prompt's keys and values."""
