"""AdminClient: requests of administrators, one class for each area."""
