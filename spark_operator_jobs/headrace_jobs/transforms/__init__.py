"""Pure functions DataFrame → DataFrame: no source, no sink, no session, no clock.

Each ends in a `select` that is its contract, and gives the same rows for past and live data.
"""
