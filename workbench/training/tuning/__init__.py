"""Block fine-tuning (Block-Attention, section 2.4): a model learns to answer from separately encoded blocks."""
