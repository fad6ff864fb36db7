"""Which model file is meant, and how it gets here."""
