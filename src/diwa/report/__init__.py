"""Tables, from plain results only."""
