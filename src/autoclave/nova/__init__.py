"""Talk to Nova: report how binds ended, and ask which servers exist."""
