"""SQL92 filter expressions."""
