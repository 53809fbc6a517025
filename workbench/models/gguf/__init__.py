"""GGUF checkpoints: headers, conversion and pretokenizers."""
