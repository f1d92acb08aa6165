"""Serve the subset of Glance's API version 2 that openstackclient and openstacksdk need."""
