"""What notebooks call, and running them without a person."""
