"""Messages delivered at any time, and their recall."""
