"""Config of an evaluation: the model, where it is served, and the tasks. Pure, since DAG files make it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.recipes.metrics.trackers import WandbOptions
from tradewind.serving.config import ServingConfig
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, instance, integer, number
from tradewind.text import did_you_mean, truncated_repr

SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "max_gen_toks", "max_tokens", "max_completion_tokens", "min_tokens",
    "until", "stop", "stop_token_ids", "include_stop_str_in_output", "do_sample", "seed", "bad_words",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "early_stopping", "logit_bias",
    "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
    "allowed_token_ids", "response_format", "structured_outputs", "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
"""Names of ``generation_params``: those of lm-eval, of OpenAI's API and of vLLM, but such as ask for more answers than
one; a harness may take fewer."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_TASKS: Final = FieldRule(
    "a list of EvalTaskConfig(name, num_fewshot), or of names of tasks",
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, (str, EvalTaskConfig)) for each in value),
)


@dataclass(frozen=True)
class ServedAddress:
    """Any OpenAI-compatible server that runs already, such as a judge.

    Attributes:
        address: Its base URL, such as ``https://example.com/v1``.
        model: The model's name there.
        api_key: Name of the environment variable with its key, if it wants one; the step's ``secrets`` fill it.
    """

    address: str
    model: str
    api_key: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, address=SOME_TEXT, model=SOME_TEXT)
        if not _is_base_url(self.address):
            raise ValueError(
                "address (not shown, since it may hold a key) must be http:// or https:// with a host and a path, "
                "without user, password and query: give the key's environment variable in api_key."
            )
        if self.api_key is not None and not (isinstance(self.api_key, str) and _VARIABLE.fullmatch(self.api_key)):
            raise ValueError(
                "api_key (not shown, since it may be the key itself) must be the name of an environment variable, such "
                "as 'JUDGE_KEY': give the key in secrets={'JUDGE_KEY': 'projects/P/secrets/S'}."
            )


def _is_base_url(address: str) -> bool:
    try:
        parts = urlsplit(address)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = parts.scheme in ("http", "https") and not parts.query and not parts.fragment and "@" not in parts.netloc
    return plain and has_port and _HOST.fullmatch(parts.netloc.rpartition(":")[0] or parts.netloc) is not None


@dataclass(frozen=True)
class EvaluationConfig:
    """What ``evaluate`` measures. The first fields are those of Marin's class of this name."""

    evaluator: str
    """Name of a harness; see ``tradewind.evaluation.harnesses``."""
    model_name: str | None
    """The model's name in results; None for the last part of its path."""
    evaluation_path: str
    """Output: records, samples, the harness's own files, and answers that a next attempt need not ask for again."""
    evals: Sequence[EvalTaskConfig | str] = ()
    """Tasks, or names of tasks, which a run may give as a param."""
    model_path: str | None = None
    """Export, training, checkpoint, or ``hub:ORGANISATION/NAME@COMMIT``."""
    discover_latest_checkpoint: bool = False
    """Whether Levanter's harness takes the newest of several exports in a folder; a pool always does."""
    launch_with_ray: bool = True
    """No effect; Marin's."""
    max_eval_instances: int | None = None
    """Documents of each task at most; None for all."""
    engine_kwargs: Mapping[str, Any] | None = None
    """Options of the engine if ``serving`` is not given."""
    resource_config: Any = None
    """Resources of an engine if ``serving`` is not given."""
    generation_params: Mapping[str, Any] | None = None
    """Options of generated answers instead of the tasks' own, such as ``{"temperature": 0.7, "max_gen_toks": 256}``."""
    apply_chat_template: bool = False
    """Whether prompts are conversations in the model's chat template."""
    wandb_tags: Sequence[str] | None = None
    """Tags of the run at Weights & Biases, beside those of ``wandb``."""
    serving: ServingConfig | ServedAddress | None = None
    """The pool that serves the model, or a server that runs already; None for a pool of one engine of Levanter's."""
    judge: ServingConfig | ServedAddress | None = None
    """The model that judges answers, for harnesses with a judge."""
    task_path: str | None = None
    """Folder with tasks of one's own."""
    tokenizer: str | None = None
    """Folder of the tokenizer, if it is not with the model."""
    network: bool = False
    """Whether the harness may download tasks and data."""
    max_context: int | None = None
    """Tokens of a prompt with its answer at most; None for what the model's config says."""
    num_concurrent: int = 16
    """Requests that the harness sends at once."""
    recovery_timeout_s: float = 1800.0
    """How long the evaluation waits for a lost server before it gives up."""
    seed: int = 1234
    """Seed of the few-shot examples and of sampling."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the harness, which its module checks."""
    tensorboard: bool = False
    """Whether the output gets TensorBoard's events, too, with the scores."""
    wandb: WandbOptions | None = None
    """The run at Weights & Biases that gets the scores."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            evaluator=SOME_TEXT,
            model_name=SOME_TEXT.or_none(),
            evaluation_path=PATH,
            evals=_TASKS,
            model_path=PATH.or_none(),
            discover_latest_checkpoint=FLAG,
            max_eval_instances=integer(1).or_none(),
            engine_kwargs=_MAPPING.or_none(),
            generation_params=_MAPPING.or_none(),
            apply_chat_template=FLAG,
            wandb_tags=TEXTS.or_none(),
            serving=_SERVED.or_none(),
            judge=_SERVED.or_none(),
            task_path=PATH.or_none(),
            tokenizer=PATH.or_none(),
            network=FLAG,
            max_context=integer(2).or_none(),
            num_concurrent=integer(1),
            recovery_timeout_s=number(above=0),
            seed=integer(0),
            options=_MAPPING,
            tensorboard=FLAG,
            wandb=instance("WandbOptions(...)", WandbOptions).or_none(),
        )
        for name in self.generation_params if isinstance(self.generation_params, Mapping) else ():
            if name not in SAMPLING:
                meant = did_you_mean(name, SAMPLING)
                raise ValueError(
                    f"generation_params has {truncated_repr(name)}, which is no setting of an answer; {meant}"
                )
        if self.model_path is None and not isinstance(self.serving, ServedAddress):
            raise ValueError("model_path=None: give the model, or serving=ServedAddress(...).")


_MAPPING: Final = instance("a mapping of options", Mapping)
_SERVED: Final = FieldRule(
    "ServingConfig(...) or ServedAddress(...)", lambda value: isinstance(value, (ServingConfig, ServedAddress))
)
