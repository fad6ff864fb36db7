"""What an answer may look like: schemas and grammars."""
