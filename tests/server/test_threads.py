"""A pool's threads are there before anybody needs them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from millstream.server.sessions.threads import start_threads


def test_all_threads_of_a_pool_are_there_at_once_and_none_is_added_by_work() -> None:
    with ThreadPoolExecutor(3, thread_name_prefix="early") as pool:
        start_threads(pool, 3)
        there = {thread for thread in threading.enumerate() if thread.name.startswith("early")}
        assert len(there) == 3
        assert set(pool.map(lambda _: threading.current_thread(), range(50))) <= there
