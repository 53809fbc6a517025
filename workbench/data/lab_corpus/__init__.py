"""The lab corpus: a seeded generator of passages and questions about an invented world."""
