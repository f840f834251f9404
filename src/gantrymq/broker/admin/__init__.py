"""What a broker answers administrators: mqadmin, `gantry admin`, the console."""
