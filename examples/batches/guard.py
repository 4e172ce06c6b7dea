"""Who may call: `rrpc-serve --interceptor guard:token` lets in whoever sends the token in BATCHES_TOKEN."""

import os

from rrpc.interceptors import ServerToken

token = ServerToken(os.environ["BATCHES_TOKEN"])
