"""AdminClient: the requests of administrators, one class an area."""
