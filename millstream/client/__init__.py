"""Talk to a Millstream server from Python: start or join a session, steer it, take its frames as arrays.
Loads no torch.

    from millstream.client import connect

    with connect("http://127.0.0.1:8000") as client:
        client.start("a red balloon over the hills at dusk")
        for chunk in client.chunks(8):
            print(chunk.index, chunk.frames.shape)

`connect_async` is the same for programs with an event loop. Controls are those of `core/controls.py`,
messages those of `core/server_messages.py`; whatever goes wrong is a `ClientError` with the server's line.
"""

from millstream.client.async_client import AsyncClient, connect_async
from millstream.client.chunk import ClientChunk
from millstream.client.sync_client import Client, connect
from millstream.core.client_messages import Ask
from millstream.core.errors import ClientError

__all__ = ["Ask", "AsyncClient", "Client", "ClientChunk", "ClientError", "connect", "connect_async"]
