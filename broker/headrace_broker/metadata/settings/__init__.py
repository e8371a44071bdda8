"""The settings of topics and brokers: names, types, defaults, checks. Knows no image."""
