"""Look into stored data: bounded listings, rows, texts and descriptions of what any tool has written below a root.

``formats`` lists the formats, each a module with ``describe`` and, if the format has rows, ``rows``. Hostile files cost
bounded memory and time: ``limits`` has the figures, and ``pool`` runs the readers in processes of their own.
"""
