"""A server of one page: HTTP in front, one thread that owns the model behind, letters sent as they come.

Each connection has a thread that waits for its letters; only the engine's thread touches the model. Ours is
built the same way.
"""

from __future__ import annotations

import http.client
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from course.reader import Reader
from course.tinylm.engine import TextRequest, TinyEngine
from course.tinylm.text import LETTERS
from course.tinylm.training import trained
from millstream.core.errors import CourseError

PROMPTS = ("one red", "two blue", "three green", "four white")
LONGEST = 64
WAIT_S = 30.0


class EngineThread:
    """Takes turns while anybody waits, and hands each letter to whom it belongs."""

    def __init__(self, engine: TinyEngine) -> None:
        self.engine = engine
        self._asked: queue.Queue[TextRequest | None] = queue.Queue()
        self._boxes: dict[TextRequest, queue.Queue[str]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, request: TextRequest) -> Iterator[str]:
        box: queue.Queue[str] = queue.Queue()
        self._boxes[request] = box
        self._asked.put(request)
        while letter := box.get(timeout=WAIT_S):
            yield letter

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            is_idle = not (self.engine.running or self.engine.waiting)
            while is_idle or not self._asked.empty():
                request = self._asked.get()
                if request is None:
                    return
                self.engine.add(request)
                is_idle = False
            for request in self.engine.turn():
                self._boxes[request].put(LETTERS[request.written[-1]])
                if request.is_done:
                    self._boxes.pop(request).put("")


class TextHandler(BaseHTTPRequestHandler):
    thread: EngineThread

    def do_POST(self) -> None:
        prompt = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not prompt or len(prompt) > LONGEST or set(prompt) - set(LETTERS):
            self.send_error(400, f"a prompt has 1 to {LONGEST} letters of those that the model knows")
            return
        self.send_response(200)
        self.end_headers()
        for letter in self.thread.ask(TextRequest(prompt="\n" + prompt, most_letters=30, seed=len(prompt))):
            self.wfile.write(letter.encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(port: int = 0) -> Iterator[int]:
    """The port that it listens on."""
    thread = EngineThread(TinyEngine(trained()))
    handler = type("Handler", (TextHandler,), {"thread": thread})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise CourseError(
            f"port {port} cannot be had ({error.strerror}); leave --port out and a free one is taken"
        ) from None
    listening = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    listening.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        listening.join()
        thread.close()


def asked(port: int, prompt: str) -> tuple[int, str, float, float]:
    """The status, the answer, and milliseconds to the first letter and to the last."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("POST", "/", prompt.encode())
    response = connection.getresponse()
    first = response.read(1)
    first_ms = 1e3 * (time.perf_counter() - begun)
    text = (first + response.read()).decode()
    connection.close()
    return response.status, text, first_ms, 1e3 * (time.perf_counter() - begun)


def run(reader: Reader, port: int = 0) -> None:
    with serving(port) as port:
        alone = {prompt: asked(port, prompt)[1] for prompt in PROMPTS}
        found = dict[str, tuple[int, str, float, float]]()
        readers = [
            threading.Thread(target=lambda p=prompt: found.update({p: asked(port, p)})) for prompt in PROMPTS
        ]
        for each in readers:
            each.start()
        for each in readers:
            each.join()
        refused = asked(port, "ONE RED?")[0]
    for prompt in PROMPTS:
        _, text, first_ms, last_ms = found[prompt]
        reader.measured(
            f"{prompt:12} first letter after {first_ms:7.1f} ms, last after {last_ms:7.1f} ms: "
            f"“{text.strip()}”"
        )
        assert 0 < first_ms <= last_ms, f"{first_ms}, {last_ms}"
    assert {prompt: text for prompt, (_, text, _, _) in found.items()} == alone, (
        "neighbours changed somebody's answer"
    )
    reader.say("all four at once, in shared calls of the model: everybody reads what they read alone")
    assert refused == 400, f"a prompt with unknown letters was answered {refused}"
    reader.say(
        "a prompt with letters that the model does not know is refused with status 400, before it waits in line"
    )
