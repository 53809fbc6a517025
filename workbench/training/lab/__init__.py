"""The lab model: corpus, tokenizer, training, checkpoint."""
