"""What a process whose memory is counted is started with: what it lets go is given back at once, in small
pages.

glibc's allocator keeps blocks for the next one; mimalloc, which torch brings along on ARM, keeps them for a
moment and asks for pages of 2 MB.
"""

from __future__ import annotations

import os

EXACT_MEMORY = os.environ | {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MIMALLOC_ALLOW_THP": "0",
    "MIMALLOC_PURGE_DELAY": "0",
}
