"""Preprocess passages offline, and look up their blocks (FusionRAG, section 4.1)."""
