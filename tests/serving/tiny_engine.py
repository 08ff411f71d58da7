"""A tiny engine with OpenAI's API, as a program: ``python tests/serving/tiny_engine.py --port N [--log FILE] ...``.

Answers follow from a hash of the prompt, so that every engine gives the same. Each request is a line of ``--log`` when
it begins and when it is answered: ``{"event", "path", "prompt", "pid"}``. A prompt with ``!exit`` ends the process; one
with ``!refuse`` is refused; the answer to one with ``!half`` ends with half of a character.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

WORDS: Final = ("a", "tiny", "engine", "says", "the", "hash", "of", "its", "prompt", "in", "words", "and", "no", "more")


def answer(prompt: Any, max_tokens: int = 16) -> list[str]:
    """Return the tokens that follow a prompt, which is a text or a list of token ids."""
    digest = hashlib.sha256(json.dumps(prompt).encode()).digest()
    return [f" {WORDS[byte % len(WORDS)]}" for byte in digest[: max(0, min(max_tokens, 32))]]


def answer_text(prompt: Any, max_tokens: int = 16) -> str:
    """Return the text that every engine answers."""
    return "".join(answer(prompt, max_tokens))


def chat_prompt(messages: list[dict[str, Any]]) -> str:
    """Return the text of a chat's messages."""
    return "".join(f"<{each['role']}>{each['content']}" for each in messages)


def tokens_of(prompt: Any) -> list[str]:
    """Split a prompt into tokens: words with the space before them, or one per id."""
    return re.findall(r"\s*\S+|\s+$", prompt) if isinstance(prompt, str) else [f" {number}" for number in prompt]


def log_probability(before: str, token: str) -> float:
    """Return a number that follows from the text."""
    digest = hashlib.sha256(f"{before}\0{token}".encode()).digest()
    return -(1 + int.from_bytes(digest[:2], "big") % 900) / 100


def log_probabilities(tokens: list[str]) -> dict[str, Any]:
    """Return what ``logprobs`` asks for, for these tokens; the first has none, as in OpenAI's API."""
    before, offsets, values = "", [], []
    for token in tokens:
        offsets.append(len(before))
        values.append(log_probability(before, token) if before else None)
        before += token
    tops = [None if value is None else {token: value} for token, value in zip(tokens, values, strict=True)]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


class TinyEngine:
    """The handlers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.started_at = time.monotonic()
        self.numbers = iter(range(1 << 62))

    def note(self, event: str, path: str, prompt: Any) -> None:
        if self.arguments.log:
            line = json.dumps({"event": event, "path": path, "prompt": prompt, "pid": os.getpid()}) + "\n"
            log = os.open(self.arguments.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(log, line.encode())
            os.close(log)

    async def health(self, request: web.Request) -> web.Response:
        is_up = time.monotonic() - self.started_at >= self.arguments.start_delay
        return web.Response(status=200 if is_up else 503)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.arguments.model, "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        given = body.get("prompt")
        is_batch = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        prompts = given if is_batch else [given]
        if not all(isinstance(prompt, (str, list)) for prompt in prompts):
            return web.json_response({"error": {"message": "prompt is no text", "type": "invalid"}}, status=400)
        return await self._answer(request, body, prompts, given, is_chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = chat_prompt(body["messages"])
        return await self._answer(request, body, [prompt], prompt, is_chat=True)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], prompts: list[Any], given: Any, *, is_chat: bool
    ) -> web.StreamResponse:
        self.note("begun", request.path, given)
        if "!exit" in json.dumps(given):
            os._exit(3)
        if "!refuse" in json.dumps(given):
            return web.json_response({"error": {"message": "refused", "type": "invalid"}}, status=400)
        limit = body.get("max_tokens", body.get("max_completion_tokens", 16))
        identity = f"cmpl-{os.getpid()}-{next(self.numbers)}"
        if body.get("stream"):
            return await self._stream(request, identity, answer(prompts[0], limit), given, is_chat=is_chat)
        await asyncio.sleep(self.arguments.delay)
        choices = list(self._choices(prompts, body, limit, is_chat=is_chat))
        usage = {
            "prompt_tokens": sum(len(tokens_of(prompt)) for prompt in prompts),
            "completion_tokens": sum(len(answer(prompt, limit)) for prompt in prompts),
        }
        kind = "chat.completion" if is_chat else "text_completion"
        self.note("answered", request.path, given)
        return web.json_response({
            "id": identity, "object": kind, "created": int(time.time()), "model": self.arguments.model,
            "choices": choices, "usage": usage | {"total_tokens": sum(usage.values())},
        })  # fmt: skip

    def _choices(
        self, prompts: list[Any], body: dict[str, Any], limit: int, *, is_chat: bool
    ) -> Iterator[dict[str, Any]]:
        for index, prompt in enumerate(prompts):
            said = answer(prompt, limit)
            text = "".join(said) + ("\ud83d" if "!half" in json.dumps(prompt) else "")
            if is_chat:
                message = {"role": "assistant", "content": text}
                yield {"index": index, "message": message, "finish_reason": "length"}
                continue
            tokens = (tokens_of(prompt) if self._echoes(body) else []) + said
            logprobs = log_probabilities(tokens) if body.get("logprobs") is not None else None
            shown = "".join(tokens) if self._echoes(body) else text
            yield {"index": index, "text": shown, "logprobs": logprobs, "finish_reason": "length"}

    def _echoes(self, body: dict[str, Any]) -> bool:
        return bool(body.get("echo")) and not self.arguments.no_echo

    async def _stream(
        self, request: web.Request, identity: str, tokens: list[str], given: Any, *, is_chat: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, token in enumerate(tokens):
            reason = "length" if number == len(tokens) - 1 else None
            part: dict[str, Any] = {"delta": {"content": token}} if is_chat else {"text": token, "logprobs": None}
            event = {"id": identity, "choices": [{"index": 0, **part, "finish_reason": reason}]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(self.arguments.token_delay)
        await response.write(b"data: [DONE]\n\n")
        self.note("answered", request.path, given)
        return response


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--log", help="file for a line per request")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds until an answer")
    parser.add_argument("--token-delay", type=float, default=0.0, help="seconds between the tokens of a stream")
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds until /health answers with 200")
    parser.add_argument("--no-echo", action="store_true", help="ignore echo, as some servers do")
    parser.add_argument("--break-with", help="print this and end with code 1 at once")
    arguments = parser.parse_args()
    if arguments.break_with:
        print(arguments.break_with, file=sys.stderr)
        sys.exit(1)
    engine = TinyEngine(arguments)
    app = web.Application(client_max_size=256 << 20)
    app.add_routes([
        web.get("/health", engine.health),
        web.get("/v1/models", engine.models),
        web.post("/v1/completions", engine.completions),
        web.post("/v1/chat/completions", engine.chat),
    ])  # fmt: skip
    web.run_app(app, host="127.0.0.1", port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
