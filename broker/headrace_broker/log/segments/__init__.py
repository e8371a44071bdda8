"""Segments: one file of records with its indexes, and the operations on a single segment.

Knows nothing of the log that contains the segments, nor of producers' states.
"""
