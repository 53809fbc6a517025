"""Methods ranked on one budget: what is measured for it, and the ranking of any results."""
