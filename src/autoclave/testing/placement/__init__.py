"""A Placement in memory: what the client uses, with the real one's rules, and fast.

It passes the same contract tests as the real service. It is for tests of many histories: it
authenticates nobody and forgets everything at the end of the process.
"""

from autoclave.testing.placement.app import FakePlacement

__all__ = ["FakePlacement"]
