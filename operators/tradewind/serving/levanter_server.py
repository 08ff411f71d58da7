"""Serve a Hugging Face export with Levanter, in OpenAI's form: ``python -m tradewind.serving.levanter_server``.

``/v1/completions`` takes texts or token ids, and scores prompts (``echo`` with ``logprobs``); ``/v1/chat/completions``
takes messages for the tokenizer's chat template. Both stream. ``/v1/models`` and ``/health`` say what is served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web

from tradewind.recipes.lm.levanter_parts import keep_compilations
from tradewind.serving.levanter_answers import Answers
from tradewind.serving.levanter_engine import Engine
from tradewind.serving.levanter_model import LevanterModel
from tradewind.serving.levanter_requests import Asked, Limits, RequestError, chat, completion, read_body
from tradewind.storage.bounded_read import SMALL, read_local
from tradewind.text import single_line

_MAX_BYTES: Final = 64 << 20
"""Size limit of a request."""
_FINISH_S: Final = 3600.0
"""How long requests are finished after SIGTERM, at most."""
_log: Final = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was asked."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(options))
    except (OSError, ValueError) as error:
        sys.exit(f"levanter_server: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="levanter_server", description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a Hugging Face export with its tokenizer")
    parser.add_argument("--served-name", help="the model's name in the API; by default that of its folder")
    parser.add_argument("--port", type=int, required=True, help="0 for a free one, which is printed")
    parser.add_argument("--max-seq-len", type=_positive, help="longest sequence in tokens, prompt and answer together")
    parser.add_argument("--max-seqs", type=_positive, default=16, help="how many sequences are generated at a time")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


async def _serve(options: argparse.Namespace) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))  # refuses a port in use at once; it listens when the model is loaded
    folder = os.path.abspath(options.model)
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise ValueError(f"--model {folder} is no export in the form of Hugging Face: it has no config.json.")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        keep_compilations(folder)
    tokenizer = load_tokenizer(folder)
    engine = Engine(partial(LevanterModel, folder, max_seq_len=options.max_seq_len, max_seqs=options.max_seqs))
    model = await asyncio.to_thread(engine.start)
    name = options.served_name or os.path.basename(folder)
    limits = Limits(name, model.max_seq_len, model.vocab_size)
    runner = web.AppRunner(
        make_app(Answers(engine, tokenizer, limits, end_tokens(folder, tokenizer)), tokenizer, limits),
        handler_cancellation=True,  # nothing is computed for a client that has gone
        shutdown_timeout=_FINISH_S,
        access_log=None,
    )
    await runner.setup()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await web.SockSite(runner, listener, backlog=512).start()
    print(f"serving {name} at http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    await ended.wait()
    await runner.cleanup()
    engine.end()


def load_tokenizer(folder: str) -> Any:
    """Return the tokenizer in a folder of a model, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def end_tokens(folder: str, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's, and those that the model's files name."""
    found = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        file = os.path.join(folder, name)
        if os.path.exists(file):
            ends = json.loads(read_local(file, SMALL).text).get("eos_token_id")
            found.update(ends if isinstance(ends, list) else [ends])
    return frozenset(token for token in found if isinstance(token, int))


def make_app(answers: Answers, tokenizer: Any, limits: Limits) -> web.Application:
    """Return the application that answers requests."""

    def answered(
        read: Callable[[Mapping[str, Any], Any, Limits], Asked],
        whole: Callable[[Asked], Awaitable[dict[str, Any]]],
        stream: Callable[[Asked], AsyncIterator[dict[str, Any]]],
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            asked = await asyncio.to_thread(lambda: read(read_body(body), tokenizer, limits))  # may take minutes
            if asked.stream:
                return await _send_stream(request, stream(asked))
            return web.json_response(await whole(asked))

        return answer

    async def models(_: web.Request) -> web.Response:
        model = {"id": limits.name, "object": "model", "owned_by": "tradewind", "max_model_len": limits.context}
        return web.json_response({"object": "list", "data": [model]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=_MAX_BYTES, middlewares=[_errors])
    app.router.add_post("/v1/completions", answered(completion, answers.completion, answers.completion_stream))
    app.router.add_post("/v1/chat/completions", answered(chat, answers.chat, answers.chat_stream))
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    return app


async def _send_stream(request: web.Request, parts: AsyncIterator[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        async for part in parts:
            await response.write(b"data: " + json.dumps(part).encode() + b"\n\n")
    except Exception as error:  # the answer has begun, so its status is sent already
        _log.exception("a stream failed")
        body = RequestError(f"The engine failed: {single_line(error)}", status=500).body()
        await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give every error OpenAI's form."""
    try:
        return await handler(request)
    except RequestError as error:
        problem = error
    except web.HTTPRequestEntityTooLarge:
        problem = RequestError(f"The request has more than {_MAX_BYTES:,} bytes.", status=413)
    except web.HTTPException as error:
        problem = RequestError(f"{request.method} {request.path}: {error.reason}.", status=error.status)
    except Exception as error:
        _log.exception("a request failed")
        problem = RequestError(f"The engine failed: {single_line(error)}", status=500)
    return web.json_response(problem.body(), status=problem.status)


if __name__ == "__main__":
    main()
