"""Simulate hosts: each is a directory with a sysfs tree, device nodes made of files, and stand-in tools.

The agent runs on it unchanged; only its roots and the path to its tools are configured. Operators rehearse a policy on
it, and tests inject faults. The imports of the stand-in tools must stay light (standard library only). The agent starts
them as often as the real ones.
"""
