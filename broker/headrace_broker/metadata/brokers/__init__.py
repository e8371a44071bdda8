"""Brokers: registration, heartbeats, fencing and departure."""
