"""Options of commands, and what they print: text, tables, pages."""
