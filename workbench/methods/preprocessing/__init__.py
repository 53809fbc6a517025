"""Preprocess passages before any request, and look up their blocks (FusionRAG, section 4.1)."""
