"""Where encoded blocks live between prompts."""
