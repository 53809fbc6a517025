"""Explorers with controls, one file each."""
