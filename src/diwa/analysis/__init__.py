"""What measurements mean; reads weights and predictions, and says so in plain words."""
