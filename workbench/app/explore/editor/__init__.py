"""The interactive prompt editor."""
