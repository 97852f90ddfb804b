"""From one description of a sweep to its runs, and from the runs to their soups."""
