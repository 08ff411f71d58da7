"""The forms that tokens have, by who gives them out: what has such a form is a secret, whatever it is called.

Providers begin their tokens with letters of their own so that they can be found in texts. Those that the rules of
gitleaks and detect-secrets know by such a beginning were the list to go by; the forms themselves are the providers'.
Neither tool is used as it is: gitleaks is a program of its own, detect-secrets brings an HTTP client and settings for
the whole process and knows nothing of Hugging Face, W&B or Google, and what both find by chance alone, such as forty
hexadecimal digits, is for us mostly a commit, a checksum or a step's version. Everything here is bounded, because texts
come from anywhere: no pattern looks at a part of a text more than a few times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final

_SHORT: Final = 200
"""Characters of a text whose answer is kept: configs of many steps hold the same names and values again and again."""
_TOKENS: Final[Mapping[str, str]] = {
    "a Hugging Face token": r"(?:hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,})",
    "a GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})",
    "a GitLab token": r"gl(?:pat|dt|rt|ft|ptt|cbt|soat|imt|agent|oas)-[A-Za-z0-9_-]{20,}",
    "an API key of a model provider": (
        r"(?:sk-(?=[A-Za-z0-9_-]{0,60}[0-9])(?=[A-Za-z0-9_-]{0,60}[A-Z])(?=[A-Za-z0-9_-]{0,60}[a-z])[A-Za-z0-9_-]{20,}"
        r"|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}|pplx-[A-Za-z0-9]{40,}|nvapi-[A-Za-z0-9_-]{40,}"
        r"|r8_[A-Za-z0-9]{30,}|lsv2_(?:pt|sk)_[A-Za-z0-9_]{30,})"
    ),
    "an AWS access key": r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "a Google API key": r"AIza[A-Za-z0-9_-]{35}",
    "a Google access token": r"(?:ya29\.[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,})",
    "an Azure key": r"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}={0,2}",
    "a Slack token": r"(?:xox[a-z]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,})",
    "a webhook's address": (
        r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks)/[\w/-]{20,}"
    ),
    "a Telegram token": r"\d{8,10}:AA[A-Za-z0-9_-]{32,}",
    "a Stripe key": r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,}",
    "a SendGrid key": r"SG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,}",
    "a Twilio key": r"SK[0-9a-f]{32}(?![A-Za-z0-9])",
    "an npm token": r"npm_[A-Za-z0-9]{36}",
    "a PyPI token": r"pypi-AgE[A-Za-z0-9_-]{50,}",
    "a Docker token": r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
    "a Databricks token": r"dapi[0-9a-f]{32}(?![A-Za-z0-9])",
    "a DigitalOcean token": r"do[opr]_v1_[0-9a-f]{64}",
    "a Vault token": r"hv[sbr]\.[A-Za-z0-9_-]{24,}",
    "a 1Password token": r"ops_eyJ[A-Za-z0-9+/_-]{100,}",
    "an age key": r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "a Grafana token": r"gl(?:c_[A-Za-z0-9+/=]{32,}|sa_[A-Za-z0-9]{32}_[0-9a-f]{8})",
    "a Sentry token": r"sntry[su]_[A-Za-z0-9+/=_-]{40,}",
    "a Shopify token": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "a Linear key": r"lin_api_[A-Za-z0-9]{32,}",
    "a Notion token": r"ntn_[A-Za-z0-9]{40,}",
    "a Postman key": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "a Tailscale key": r"tskey-[a-z]{2,12}-[A-Za-z0-9-]{10,}",
    "a Pulumi token": r"pul-[0-9a-f]{40}",
    "an Artifactory key": r"AKCp[A-Za-z0-9]{60,}",
    "a Kaggle token": r"KGAT_[A-Za-z0-9]{20,}",
    "a W&B key": r"wandb_v\d_[A-Za-z0-9_-]{20,}",
    "a Neptune token": r"eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/=_-]{40,}",
    "a signed web token": r"(?<!-)eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    "a signed URL": (
        r"(?:X-Amz-Signature|X-Goog-Signature|Signature|sig)=(?=[A-Za-z0-9%+/_-]{0,60}\d)[A-Za-z0-9%+/_-]{30,}"
    ),
    "a URL with a password": (
        r"[A-Za-z][A-Za-z0-9+.-]{0,30}://(?:[^/\s:@]{0,300}:(?!\$|\*+@)(?![^/\s@]{1,200}@sha256:)[^/\s@]{1,2000}"
        r"|(?=[^/\s:@]{0,300}\d)[A-Za-z0-9_-]{20,300})@"
    ),
    "an authorization header": (
        r"[Aa]uthorization[\\'\"]{0,4}\s{0,3}[:=,]\s{0,3}[\\'\"]{0,4}(?:[Bb]earer|[Bb]asic|[Tt]oken)\s{1,3}(?![\\'\"]{0,2}[$<{*])"
        r"[^\s'\"\\]{1,2000}"
    ),
    "basic credentials": (
        r"[Bb]asic\s{1,3}(?=[A-Za-z0-9+/]{0,60}\d)(?=[A-Za-z0-9+/]{0,60}[A-Z])[A-Za-z0-9+/]{16,}={0,2}"
    ),
    "a bearer token": r"[Bb]earer\s{1,3}(?=[A-Za-z0-9._~+/-]{0,60}\d)[A-Za-z0-9._~+/-]{16,}",
}
_BLOCKS: Final[Mapping[str, str]] = {
    "a connection with a password": (
        r"(?i:\b(?:host|server|data source|user|user id|uid|username|dbname|database|port)=[^;\s,'\"()]{1,200}[;\s]\s?"
        r"(?:password|pwd)=)(?![$<{*])[^\s;,'\"()]{1,200}"
    ),
    "a private key": r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d",
    "a password in JSON": (
        r"\\{0,3}[\"'][\w.-]{0,40}?(?i:password|passwd|passphrase|secret|api_?key|access_?key|secret_?key|private_?key"
        r"|auth_?token|access_?token|refresh_?token)\d{0,2}\\{0,3}[\"']\s{0,3}:\s{0,3}\\{0,3}[\"']"
        r"(?!\\{0,3}[\"']|[$<{*]|(?i:true|false|none|null|yes|no|on|off|env:|projects/)|/)[^\"'\\]{1,2000}"
    ),
}


@cache
def _pattern() -> tuple[re.Pattern[str], tuple[str, ...]]:
    """All forms as one pattern, made when it is first needed, and what each of its groups is."""
    word_begins = r"(?<![A-Za-z0-9_])"
    groups = [f"({word_begins}{pattern})" for pattern in _TOKENS.values()] + [
        f"({block})" for block in _BLOCKS.values()
    ]
    return re.compile("|".join(groups)), (*_TOKENS, *_BLOCKS)


def without_tokens(text: str) -> str:
    """``text`` with ``***`` for each part that has the form of a known kind of secret."""
    return _pattern()[0].sub("***", text)


def token_form(text: str) -> str | None:
    """What the text holds that has the form of a known kind of secret, such as ``"a GitHub token"``, or None."""
    return _found_before(text) if len(text) <= _SHORT else _found(text)


def _found(text: str) -> str | None:
    pattern, kinds = _pattern()
    found = pattern.search(text)
    return None if found is None or found.lastindex is None else kinds[found.lastindex - 1]


_found_before = lru_cache(maxsize=4096)(_found)
