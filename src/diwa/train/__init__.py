"""The one loop, what it starts from, and what watches it."""
