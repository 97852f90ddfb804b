"""What to minimise and how to step; one file per algorithm, hyperparameters beside it."""

from diwa.registry import Registry

#: Every algorithm by name. A third party adds one by an entry point in this group.
ALGORITHMS = Registry("algorithm", {"ERM": "diwa.algorithms.erm:ERM"}, group="diwa.algorithms")
