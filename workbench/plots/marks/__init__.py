"""Marks that all figures share: lines, dots, bars, tables, with theme, styles and controls."""
