"""The lab model: tokenizer, training, checkpoint."""
