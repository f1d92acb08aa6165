"""The compute API: the subset of Nova's that openstackclient and openstacksdk need, in the shapes of 2.96."""
