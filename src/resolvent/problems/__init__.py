"""What users minimise."""
