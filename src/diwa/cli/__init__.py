"""The command line: one file per verb, each of which parses and makes one public call."""
