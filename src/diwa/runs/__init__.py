"""What happened, on disk: specifications of runs, and the store that holds them."""
