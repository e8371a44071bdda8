"""The settings that topics and brokers have: names, types, defaults, checks. Knows no image."""
