"""Names to networks: backbones, the head, frozen batch norm, and what they are computed on."""
