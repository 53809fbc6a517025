"""Block fine-tuning (Block-Attention, section 2.4): train a model to answer from separately encoded blocks."""
