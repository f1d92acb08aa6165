"""What an audit makes of what it was told: facts in, findings out. Nothing here looks at anything."""
