"""Report bind events to Nova, and look up its servers."""
