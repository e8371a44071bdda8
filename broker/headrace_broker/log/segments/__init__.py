"""Segments: one file of records with its indexes, and what is done to a segment by itself.

Knows nothing of the log that segments make up, nor of producers' states.
"""
