"""The command line `headrace`."""
