"""Serve the subset of Nova's API that openstackclient and openstacksdk need, in the shapes of 2.96."""
