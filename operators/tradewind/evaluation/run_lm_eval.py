"""Process that runs lm-eval: ``python -m tradewind.evaluation.run_lm_eval``, with what to measure on standard input.

It works in two parts, so that a task or a prompt that is impossible is found before a model is served. First it loads
each task and makes its prompts. After a second line with the address, it asks the model, task by task. It tells what
happens in JSON lines on standard output; lm-eval's own lines go to standard error. It ends with its standard input, so
it never outlives the evaluation.

A request that the server refuses makes its document an error, not the task.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TextIO

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from tradewind.evaluation.lm_eval import described, needs_network
from tradewind.evaluation.lm_eval_files import save_samples
from tradewind.records.parsing import replace_surrogates
from tradewind.text import single_line

_NO_ANSWER: Final = (float("-inf"), False)
_FOREVER_S: Final = 10**8
"""The gateway waits for the server; a client that waits less would send a request twice."""
_MAX_NAMED: Final = 5
_MAX_FIRST_FAILED: Final = 20
"""Requests of a task, or one in ten if these are more, that may fail before the first that does not. The longest are
sent first, and may be too long; but a server without ``echo``, or of another model, refuses all."""


class _Events:
    """JSON lines to the evaluation; whatever lm-eval prints goes elsewhere."""

    def __init__(self) -> None:
        self._file: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")
        self._file.flush()


class _Errors:
    """Requests that failed, by their texts."""

    def __init__(self) -> None:
        self._messages: dict[Any, str] = {}
        self.is_answered = False
        """Whether any request was."""
        self.max_first = _MAX_FIRST_FAILED

    def note(self, request: Sequence[Any], message: str, *, generate: bool) -> None:
        """Keep an error; raise ``RuntimeError`` if the server answers none of the first requests."""
        if not self.is_answered and len(self._messages) >= self.max_first:
            raise RuntimeError(f"the model answered none of the first {self.max_first:,} requests: {message}")
        self._messages[self._key(request, generate=generate)] = message

    def of(self, arguments: Iterable[Sequence[Any]]) -> str | None:
        """Return the error of a document with these requests."""
        for request in (each for each in arguments if len(each) > 1):
            generate = not isinstance(request[1], str)
            if (found := self._messages.get(self._key(request, generate=generate))) is not None:
                return found
        return None

    @staticmethod
    def _key(request: Sequence[Any], *, generate: bool) -> Any:
        prompt = request[0][0] if isinstance(request[0], tuple) else request[0]  # a chat
        return ("generate", prompt) if generate else ("score", prompt, request[1])


class _Asking:
    """Sends one request; the gateway repeats it if need be. Mixed into lm-eval's clients."""

    errors: _Errors
    turn: _Turn

    async def amodel_call(
        self,
        session: Any,
        sem: Any,
        messages: Any,
        *,
        generate: bool = True,
        cache_keys: Any = None,
        ctxlens: Any = None,
        gen_kwargs: Any = None,
        **kwargs: Any,
    ) -> Any:
        client: Any = self
        options = copy.deepcopy(gen_kwargs)
        payload = client._create_payload(
            client.create_message(messages), generate=generate, gen_kwargs=options, seed=client._seed, **kwargs
        )
        async with sem, session.post(client.base_url, json=payload) as response:
            text = await response.text()
        failed = _failure(response.status, text)
        if failed is None:
            try:
                outputs = json.loads(text)
                answers = (
                    [replace_surrogates(each or "") for each in client.parse_generations(outputs=outputs)]
                    if generate
                    else client.parse_logprobs(outputs=outputs, tokens=messages, ctxlens=ctxlens)
                )
                self.errors.is_answered = True
                return answers
            except Exception as error:  # an answer in another form
                failed = f"the answer has another form ({type(error).__name__}: {error})"
        if cache_keys[0] is None:  # a part of a document's likelihood
            raise RuntimeError(failed)
        self.errors.note(cache_keys[0], single_line(failed, 500), generate=generate)
        return [""] if generate else [_NO_ANSWER]

    def loglikelihood(self, requests: Any, **kwargs: Any) -> Any:
        self.turn.wait(len(requests))
        return super().loglikelihood(requests, **kwargs)  # type: ignore[misc]

    def loglikelihood_rolling(self, requests: Any, **kwargs: Any) -> Any:
        self.turn.wait(len(requests))
        return super().loglikelihood_rolling(requests, **kwargs)  # type: ignore[misc]

    def generate_until(self, requests: Any, **kwargs: Any) -> Any:
        self.turn.wait(len(requests))
        return super().generate_until(requests, **kwargs)  # type: ignore[misc]


def _failure(status: int, text: str) -> str | None:
    """Return the error of a response; raise ``_GaveUp`` if the gateway has given up."""
    if status == 200:
        return None
    try:
        error = json.loads(text)["error"]
        code, message = error.get("code"), str(error.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = None, text[:200]
    if code == "gave_up":
        raise _GaveUpError(message)
    if code == "refused":  # by the gateway
        return message
    return f"HTTP {status}: {message}"


class _GaveUpError(Exception):
    """The gateway sends nothing more."""


class _Completions(_Asking, LocalCompletionsAPI):
    """``local-completions``."""


class _Chat(_Asking, LocalChatCompletion):
    """``local-chat-completions``: the server applies the chat template, which is that of the tokenizer."""

    def chat_template(self, chat_template: bool | str = False) -> str:
        return str(self.turn.tokenizer.get_chat_template()) if self.turn.has_tokenizer else ""


class _Loaded:
    """lm-eval's tasks, of which one is loaded once. No two turns share it, since each sets the shots in the task."""

    def __init__(self, manager: TaskManager) -> None:
        self._manager = manager
        self._loaded: Any = None

    def load(self, task_list: Any) -> Any:
        """Return the task, or the group with its tasks."""
        if self._loaded is None:
            self._loaded = self._manager.load(task_list)
        return self._loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class _Turn(threading.Thread):
    """One task, in a thread that waits once its prompts are made, so that all tasks are checked before one is asked."""

    def __init__(self, session: _Session, task: Mapping[str, Any]) -> None:
        super().__init__(name=task["label"], daemon=True)
        self._session = session
        self.task = task
        self.loaded = _Loaded(session.manager_of(task["name"]))
        self.is_waiting = threading.Event()
        """Set when its prompts are made, or it has ended."""
        self.may_ask = threading.Event()
        self.error: BaseException | None = None
        self.model: Any = None

    def wait(self, requests: int) -> None:
        """Wait until the model is served; called for each kind of request, with how many there are."""
        self.is_waiting.set()
        self.may_ask.wait()
        self.model.errors.max_first = max(_MAX_FIRST_FAILED, requests // 10)
        self.model.base_url = self._session.url(is_chat=isinstance(self.model, _Chat))

    def run(self) -> None:
        try:
            self._session.measure(self)
        except BaseException as error:
            self.error = error
        finally:
            self.is_waiting.set()

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model's tokenizer is known."""
        return self._session.has_tokenizer

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._session.tokenizer

    def tasks(self) -> dict[str, Task]:
        """Return lm-eval's tasks behind the name, which may be a group's."""
        tasks: dict[str, Task] = self.loaded.load([self.task["name"]])["tasks"]
        return tasks


class _Session:
    """What the lines of standard input ask for."""

    def __init__(self, spec: Mapping[str, Any], events: _Events) -> None:
        self._spec = spec
        self._events = events
        self._managers: dict[bool, TaskManager] = {}
        self._address = ""
        self._turns: list[_Turn] = []

    def prepare(self) -> bool:
        """Load the tasks and make their prompts; return whether all are possible."""
        if unknown := [name for name in self._names() if self.manager_of(name) is None]:
            for name in unknown:
                near = difflib.get_close_matches(name, self._manager(defaults=True).all_tasks, n=3)
                self._events.send("refused", kind="unknown", name=name, near=near)
            return False
        fine = True
        for task in self._spec["tasks"]:
            turn = _Turn(self, task)
            turn.start()
            turn.is_waiting.wait()
            fine = self._report(turn) and fine
            self._turns.append(turn)
        return fine

    def ask(self, address: str) -> None:
        """Ask the model, task by task."""
        self._address = address
        for turn in self._turns:
            label = turn.task["label"]
            self._events.send("started", label=label)
            turn.may_ask.set()
            turn.join()
            if turn.error is None:
                self._events.send("ended", label=label)
                continue
            lost = isinstance(turn.error, _GaveUpError)
            traceback.print_exception(turn.error)
            self._events.send("failed", label=label, error=described(turn.error), lost=lost)

    def url(self, *, is_chat: bool) -> str:
        """Return the address that a client posts to."""
        return f"{self._address}/{'chat/completions' if is_chat else 'completions'}"

    def measure(self, turn: _Turn) -> None:
        """Measure one task, and write lm-eval's files; the first request waits."""
        spec, task = self._spec, turn.task
        chat = spec["apply_chat_template"] and _only_generates(turn.tasks())
        turn.model = self._model(turn, chat=chat)
        tracker = EvaluationTracker(output_path=task["folder"])
        results = simple_evaluate(
            model=turn.model,
            model_args=f"model={spec['model_name']}",
            tasks=[task["name"]],
            num_fewshot=task["num_fewshot"],
            limit=spec["limit"],
            bootstrap_iters=0,  # the intervals are Tradewind's
            evaluation_tracker=tracker,
            apply_chat_template=spec["apply_chat_template"],
            fewshot_as_multiturn=spec["apply_chat_template"],
            gen_kwargs=copy.deepcopy(spec["generation_params"]) or None,
            task_manager=turn.loaded,
            numpy_random_seed=spec["seed"],
            torch_random_seed=spec["seed"],
            fewshot_random_seed=spec["seed"],
            confirm_run_unsafe_code=spec["confirm_run_unsafe_code"],
        )
        samples = results.pop("samples")
        for each in (sample for of_task in samples.values() for sample in of_task):
            if (error := turn.model.errors.of(each["arguments"])) is not None:
                each["error"] = error
        tracker.save_results_aggregated(results=results, samples=samples)
        save_samples(tracker, Path(task["folder"]), samples)

    def manager_of(self, name: str) -> TaskManager | None:
        """Return the tasks that have this one: of the folder, or, read only if need be, lm-eval's own."""
        for defaults in (False, True) if self._spec["task_path"] else (True,):
            if name in (found := self._manager(defaults=defaults)).all_tasks:
                return found
        return None

    def _manager(self, *, defaults: bool) -> TaskManager:
        if defaults not in self._managers:
            own = [self._spec["task_path"]] if self._spec["task_path"] else None
            self._managers[defaults] = TaskManager(include_defaults=defaults, include_path=own)
        return self._managers[defaults]

    def _names(self) -> Iterator[str]:
        return (task["name"] for task in self._spec["tasks"])

    def _model(self, turn: _Turn, *, chat: bool) -> Any:
        spec = self._spec
        kind = _Chat if chat else _Completions
        has_tokenizer = self.has_tokenizer and not chat
        model = kind(
            base_url="http://127.0.0.1",
            model=spec["model_name"],
            tokenizer_backend="huggingface" if has_tokenizer else None,
            tokenizer=spec["tokenizer"] if has_tokenizer else None,
            tokenized_requests=has_tokenizer,
            add_bos_token=spec["add_bos_token"],
            num_concurrent=max(2, spec["num_concurrent"]),
            max_length=spec["max_context"] or 2048,
            max_retries=1,
            timeout=_FOREVER_S,
            seed=spec["seed"],
        )
        if spec["max_context"] is None:
            model.max_length = sys.maxsize  # unknown, so the server decides
        model.turn, model.errors = turn, _Errors()
        return model

    def _report(self, turn: _Turn) -> bool:
        """Tell what a task needs, or why it is impossible."""
        label = turn.task["label"]
        if turn.error is not None:
            traceback.print_exception(turn.error)
            self._events.send("refused", label=label, name=turn.task["name"], **self._described(turn.error))
            return False
        tasks = turn.tasks()
        instances = [each for task in tasks.values() for each in task.instances]
        needs_tokens = any(each.request_type != "generate_until" for each in instances)
        if needs_tokens and not self.has_tokenizer:
            self._events.send("refused", kind="tokenizer", label=label, name=turn.task["name"])
            return False
        too_long, longest = self._too_long(turn, instances)
        if too_long and not self._spec["truncate"]:
            self._events.send(
                "refused", kind="context", label=label, name=turn.task["name"], longest=longest,
                count=len(too_long), documents=too_long[:_MAX_NAMED],
            )  # fmt: skip
            return False
        documents = sum(len({each.doc_id for each in task.instances}) for task in tasks.values())
        requests = sum(each.repeats for each in instances)
        self._events.send(
            "prepared", label=label, documents=documents, requests=requests, tasks=list(tasks), truncated=len(too_long)
        )
        return True

    def _described(self, error: BaseException) -> dict[str, str]:
        kind = "network" if needs_network(error) and not self._spec["network"] else "broken"
        return {"kind": kind, "error": described(error)}

    def _too_long(self, turn: _Turn, instances: Sequence[Instance]) -> tuple[list[str], int]:
        """Return the documents whose prompt and answer are longer than the context, and the longest of them."""
        context = self._spec["max_context"]
        if context is None or not self.has_tokenizer:
            return [], 0
        is_whole = len(turn.tasks()) == 1
        documents: dict[str, int] = {}
        for start in range(0, len(instances), 1000):
            some = [each for each in instances[start : start + 1000] if each.request_type != "loglikelihood_rolling"]
            texts = [str(_text(each, turn.model)) for each in some]
            for each, length in zip(some, self._lengths(texts) if texts else [], strict=True):
                needed = length + _generated(each, turn.model)
                if needed > context:
                    name = str(each.doc_id) if is_whole else f"{each.task_name}:{each.doc_id}"
                    documents[name] = max(needed, documents.get(name, 0))
        return list(documents), max(documents.values(), default=0)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model's tokenizer is known."""
        return self._spec["tokenizer"] is not None

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        import transformers

        return transformers.AutoTokenizer.from_pretrained(self._spec["tokenizer"])

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        special = self._spec["add_bos_token"]
        encoded = self.tokenizer(texts, add_special_tokens=special, return_attention_mask=False).input_ids
        return [len(tokens) for tokens in encoded]


def _only_generates(tasks: Mapping[str, Task]) -> bool:
    return all(task.OUTPUT_TYPE == "generate_until" for task in tasks.values())


def _text(instance: Instance, model: Any) -> str:
    """Return the text that the model reads."""
    first = instance.args[0]
    if instance.request_type == "loglikelihood":
        return f"{first}{instance.args[1]}"
    if isinstance(model, _Chat):
        messages = json.loads(first.prompt)
        return str(model.turn.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return str(first)


def _generated(instance: Instance, model: Any) -> int:
    """Return the tokens that the model may add."""
    if instance.request_type != "generate_until":
        return 0
    options = instance.args[1]
    given = options.get("max_gen_toks", options.get("max_tokens", model._max_gen_toks))
    return int(given)


def main() -> None:
    """Run what standard input asks for."""
    events = _Events()
    spec = json.loads(sys.stdin.readline())
    session = _Session(spec, events)
    if not session.prepare():
        events.send("done")
        os._exit(0)
    events.send("ready")
    asked = sys.stdin.readline()
    if not asked:
        os._exit(1)
    threading.Thread(target=_end_with_input, daemon=True).start()
    given = json.loads(asked)
    session.ask(given["address"])
    events.send("done")
    os._exit(0)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
