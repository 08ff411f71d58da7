"""Collections of text documents: reading, writing, cleaning."""
