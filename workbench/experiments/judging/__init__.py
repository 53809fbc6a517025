"""What the papers claim, judged on any results."""
