"""Explorers with controls, one per file."""
