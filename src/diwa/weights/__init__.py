"""Tensors and files; this room knows no model and no data."""
