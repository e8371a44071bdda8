"""Brokers: how they register, are heard from, fenced and leave."""
