"""The image API: the subset of Glance's version 2 that openstackclient and openstacksdk need."""
