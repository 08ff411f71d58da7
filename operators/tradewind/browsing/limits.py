"""Limits of one request: each bounds the memory, the time or the size of what a page can show."""

from __future__ import annotations

from typing import Final

MEMORY_BYTES: Final = 64 << 20
"""What one request may allocate, besides what readers keep. The kernel refuses more."""
TIMEOUT_S: Final = 8.0
"""A reader stops here and answers what it has; a user who waits longer reloads."""
GRACE_S: Final = 4.0
"""A reader that has not answered so long after its timeout is killed: its store, or a damaged file, blocks it."""
MAX_ROWS: Final = 10_000
"""Rows of a page; a browser shows no more at once."""
MAX_SCANNED_ROWS: Final = 200_000
"""Rows that a filter reads for one page."""
MAX_COLUMNS: Final = 200
"""Columns of a page; of wider tables the user names those to show."""
MAX_PAGE_BYTES: Final = 8 << 20
"""Texts of a page's values, of which Python's objects take a few times as much."""
VALUE_CHARS: Final = 1000
"""Characters of a value in a page unless the request says otherwise."""
MAX_VALUE_CHARS: Final = 20_000
"""Characters of a value in a page at most."""
MAX_WHOLE_VALUE_CHARS: Final = 1 << 20
"""Characters of one value that is asked for alone."""
MAX_LINE_BYTES: Final = 4 << 20
"""Bytes of a line of JSON or CSV that is parsed; a longer one is shown as text."""
MAX_LINE_VALUES: Final = 200_000
"""Values in a line: an empty list takes 3 bytes in a file, and 60 in memory."""
MAX_FOOTER_BYTES: Final = 16 << 20
"""Footer of a Parquet file or header of a safetensors file; in memory they are a few times as large."""
MAX_LISTED: Final = 1000
"""Entries of a page of a folder."""
MAX_SCAN_S: Final = 3.0
"""Seconds for the names of a local folder: about 3 million names. Larger folders are narrowed by a prefix."""
MAX_TEXT_BYTES: Final = 1 << 20
"""Bytes of a page of text."""
MAX_ARRAYS: Final = 5000
"""Arrays of a checkpoint that a description lists."""
MAX_FILES: Final = 2000
"""Files of a manifest that a description lists."""
MAX_IMAGE_BYTES: Final = 16 << 20
"""Size of an image file that is passed on."""
MAX_IMAGE_PIXELS: Final = 40_000_000
"""Pixels of an image: a browser takes 4 bytes for each, however small the file."""
MAX_DOWNLOAD_BYTES: Final = 2 << 30
"""Size of a file that passes through the API server; larger ones are copied from the store itself."""
DOWNLOAD_PIECE_BYTES: Final = 2 << 20
"""Piece of a download in memory."""
