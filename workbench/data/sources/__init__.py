"""Where samples come from besides the lab corpus and the manuals: files and generated tasks."""
