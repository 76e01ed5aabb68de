"""Video files in and out: the names the rest of the program uses.

`video_reader.py` reads and `video_writer.py` writes; neither knows of the other.
"""

from millstream.server.video_reader import VideoReader, chunked
from millstream.server.video_writer import VideoWriter, available_codecs

__all__ = ["VideoReader", "VideoWriter", "available_codecs", "chunked"]
