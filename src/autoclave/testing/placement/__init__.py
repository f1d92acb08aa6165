"""Double Placement in memory: the requests of the client, with the rules of the real service.

It passes the same contract tests as the real service. It is for tests of many histories. It is fast, does not
authenticate, and loses everything at the end of the process.
"""

from autoclave.testing.placement.app import FakePlacement

__all__ = ["FakePlacement"]
