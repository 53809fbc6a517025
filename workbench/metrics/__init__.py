"""Answer quality, deviation and cost."""
