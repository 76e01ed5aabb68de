"""One message from rank 0 to rank 1, and an answer."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, numbers: int = 4) -> None:
    sent, received = on_ranks(there_and_back, 2, numbers)
    assert received == [float(i) for i in range(numbers)], f"rank 1 received {received}"
    assert sent == [2 * each for each in received], f"rank 0 got back {sent}"
    reader.say(f"rank 0 sent      {received}")
    reader.say(f"rank 1 received  {received}, doubled it and sent it back")
    reader.say(f"rank 0 got back  {sent}")


def there_and_back(rank: int, world: int, numbers: int) -> list[float]:
    if rank == 0:
        message = torch.arange(float(numbers))
        dist.send(message, dst=1)
        answer = torch.empty(
            numbers
        )  # the receiver makes the room: shape and type must be agreed on beforehand
        dist.recv(answer, src=1)
        return answer.tolist()
    message = torch.empty(numbers)
    dist.recv(message, src=0)
    dist.send(2 * message, dst=0)
    return message.tolist()
