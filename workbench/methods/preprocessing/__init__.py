"""Preprocess passages ahead of any request, and find their blocks again (FusionRAG, section 4.1)."""
