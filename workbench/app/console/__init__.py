"""What commands print: options, text, tables, pages."""
