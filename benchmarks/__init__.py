"""One command per claim; results lie beside it."""

import os

from millstream.core.torch_settings import settle_torch

settle_torch(os.environ)  # as the command line does
