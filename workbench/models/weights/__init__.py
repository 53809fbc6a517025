"""How weights are stored: adapters, 8 bits, deltas, and their layout in memory."""
