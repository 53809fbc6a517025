"""Text and batches of block fine-tuning."""
