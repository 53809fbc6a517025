"""The methods, one a file, by the name of their mode."""
