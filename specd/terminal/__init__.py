"""What people see: streamed text, a status line, progress, tables."""
