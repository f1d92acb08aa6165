"""Simulated hosts: a directory with a sysfs tree, device nodes made of files, and stand-in tools.

The agent runs on one unchanged; only its roots and the path to its tools are configured. Operators
rehearse a policy on it, tests break it. What the stand-in tools import must stay light (standard
library only): the agent starts them as often as it would start the real ones.
"""
