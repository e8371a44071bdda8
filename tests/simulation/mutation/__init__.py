"""Systematic mutation: the pure layers' source, changed at one place at a time.

Whatever no unit test and no seed notices is listed in docs/simulation.md, with the test that kills
it now or the reason why it changes nothing.
"""
