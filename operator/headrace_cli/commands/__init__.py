"""One module per command. Heavy imports stay inside the functions: help and completion are fast."""
