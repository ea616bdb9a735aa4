"""The least that answers: a callable that uvicorn calls, the lab's predictor, msgspec.

    MODEL_TYPE=hybrid uvicorn --app-dir examples plain_service:app

`gnnlab serve` is this with limits, batches, a cache, a database and metrics.
"""

import os

import msgspec
import torch

from gnnlab.inference.predictor import Predictor

KIND = os.environ.get("MODEL_TYPE", "hybrid")
torch.set_num_threads(1)
predictor = Predictor(KIND, "cpu")


async def app(scope, receive, send) -> None:
    """What uvicorn calls for each request."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    answer = {**predictor.predict(body)._asdict(), "model_type": KIND} if body else {"status": "live"}
    text = msgspec.json.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})
