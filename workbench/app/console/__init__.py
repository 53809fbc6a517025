"""Options of commands, and their output: text, tables, pages."""
