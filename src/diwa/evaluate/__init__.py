"""A model on a domain: predictions, and what is read off them."""
