"""Chat format of exports: the template of the training's chats, and the tokens that end an answer.

Levanter exports the tokenizer's own template and no ``generation_config.json``. A server would then ask the model in
another form than it was trained on, and would not stop at the end of an answer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tradewind.recipes.lm.checks import load_tokenizer
from tradewind.recipes.lm.data_locations import cached_components
from tradewind.text import truncated_repr

_CHAT: Final = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"})


def with_chat_format(made: Any) -> Any:
    """Return Levanter's config, whose exports get the template of the chats and the tokens that end an answer.

    Raises:
        ValueError: The tokenizer cannot be loaded, or the config's own ``hf_generation_eos_token_ids`` are invalid.
    """
    check_stop_tokens(made, "train_config.hf_generation_eos_token_ids")
    formats = _chat_formats(made.data)
    if (template := _template(made.data, formats)) is None:
        return made
    data, tokenizer = dataclasses.replace(made.data), load_tokenizer(made.data)
    # Levanter's cached property; exports are the only readers of its template, since all chats have this one.
    vars(data)["the_tokenizer"] = dataclasses.replace(tokenizer, _chat_template=template)
    stops = made.hf_generation_eos_token_ids or _stop_tokens(tokenizer, template, formats[0].mask_user_turns)
    return dataclasses.replace(made, data=data, hf_generation_eos_token_ids=stops or None)


def chat_lines(made: Any) -> list[str]:
    """Return log lines about the chat format of the exports of a config by ``with_chat_format``."""
    formats = _chat_formats(made.data)
    if not formats:
        return []
    if _template(made.data, formats) is None:
        return ["exports have no chat template but the tokenizer's, since those of the components differ"]
    tokenizer, stops = made.data.the_tokenizer, made.hf_generation_eos_token_ids
    if not stops:
        return [
            f"exports end an answer at {tokenizer.eos_token!r} only, since the chat template has no special token at "
            "the end of the assistant's words: put {{ eos_token }} there, before {% endgeneration %}"
        ]
    ends = " and ".join(repr(tokenizer.convert_ids_to_tokens(token)) for token in stops)
    return [f"exports have the chat template and end an answer at {ends}"]


def check_stop_tokens(made: Any, field: str) -> None:
    """Raise ``ValueError`` with ``field`` for stop tokens that Levanter would refuse only when it exports."""
    from levanter.compat.hf_checkpoints import build_generation_config

    stops = made.hf_generation_eos_token_ids
    if stops is not None:
        tokenizer = load_tokenizer(made.data)
        try:
            build_generation_config(tokenizer, stops)
        except ValueError as error:
            raise ValueError(f"{field}={truncated_repr(stops)}: {error}: give numbers of tokens, or None.") from error


def _chat_formats(data: Any) -> list[Any]:
    formats = (getattr(component, "format", None) for _, component in cached_components(data))
    return [each for each in formats if hasattr(each, "chat_template")]


def _template(data: Any, formats: list[Any]) -> str | None:
    """Return the template of all chats; None if there are none, or several templates."""
    if not formats:
        return None
    own = None if all(each.chat_template for each in formats) else load_tokenizer(data).chat_template
    templates = {each.chat_template or own for each in formats}
    return templates.pop() if len(templates) == 1 else None


def _stop_tokens(tokenizer: Any, template: str, is_masked: bool) -> list[int]:
    """Return the special token after the assistant's words, if the model is trained on one."""
    try:
        made = tokenizer.apply_chat_template_with_masks([list(_CHAT)], chat_template=template)
    except Exception:  # a template may want other roles or fields, and raises various types
        return []
    added = tokenizer._tokenizer.get_added_tokens_decoder()
    special = {*tokenizer.all_special_ids, *(token for token, about in added.items() if about.special)}
    for token, is_marked in zip(reversed(made["input_ids"][0]), reversed(made["assistant_masks"][0]), strict=True):
        if token in special:
            if is_marked or not is_masked:
                return [token]
        elif tokenizer.decode([token]).strip():
            break
    return []
