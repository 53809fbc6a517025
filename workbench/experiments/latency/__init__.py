"""Time to first token: measured, computed and traced."""
