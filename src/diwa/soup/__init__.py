"""Which members to average; this room knows weights, and a score function that is handed in."""
