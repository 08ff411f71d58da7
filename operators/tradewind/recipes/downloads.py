"""Steps that download: ``default_download`` in the manner of Marin's function of that name, and files by address."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.datasets.downloads import (
    RESUMABLE,
    FilesDownloadConfig,
    HubDownloadConfig,
    download_files,
    download_hf,
    names_of,
)
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, InputName, ensure_versioned, this_output_path

_FIELDS = ("hf_urls_glob", "hf_repo_type_prefix")


def default_download(
    name: str,
    hf_dataset_id: str,
    revision: str,
    override_output_path: str | None = None,
    *,
    description: str | None = None,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
    **options: Any,
) -> InputName:
    """Return the output of a step that downloads a repository of the Hugging Face hub.

    As in Marin, only the name and ``versioned(...)`` values count in the version: two steps for two revisions need two
    names.

    Args:
        name: Name of the step.
        hf_dataset_id: ``owner/name``.
        revision: A commit, long or short.
        override_output_path: As in ``ExecutorStep``.
        description: Shown to users.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``; ``HF_TOKEN`` for a private or gated repository.
        options: ``hf_urls_glob`` (globs of the files to download) and ``hf_repo_type_prefix`` (``datasets``,
            ``models`` or ``spaces``).

    Raises:
        ValueError: An option is unknown, or its field does not take the value.
    """
    step = _download_step(
        name,
        hf_dataset_id,
        revision,
        options,
        override_output_path=override_output_path,
        description=description or f"Files of {hf_dataset_id} at {revision}, from the Hugging Face hub.",
        cluster=cluster,
        secrets=dict(secrets or {}),
    )
    return step.as_input_name()


@naming_step
def _download_step(
    name: str, hf_dataset_id: str, revision: str, options: Mapping[str, Any], **step_options: Any
) -> ExecutorStep:
    for option in options:
        if option not in _FIELDS:
            near = difflib.get_close_matches(option, _FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(_FIELDS)}."
            raise ValueError(f"default_download({option}=...) is no option; {hint}")
    config = HubDownloadConfig(hf_dataset_id, revision, this_output_path(), **options)
    return ExecutorStep(name, download_hf, config, resumable=RESUMABLE, **step_options)


@naming_step
def download(
    name: str,
    urls: Sequence[str],
    *,
    sha256: Mapping[str, str] | None = None,
    description: str = "Files from elsewhere.",
    override_output_path: str | None = None,
    cluster: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ExecutorStep:
    """Return a step that downloads files; addresses and checksums count in its version.

    Args:
        name: Name of the step.
        urls: ``https://...``, or of a store, such as ``gs://...``; the end of an address names its copy.
        sha256: Address → SHA-256 of its file, in hexadecimal; a file without one is not checked.
        description: Shown to users.
        override_output_path: As in ``ExecutorStep``.
        cluster: As in ``ExecutorStep``.
        secrets: As in ``ExecutorStep``.

    Raises:
        ValueError: There are no addresses, one has no name at its end, or two have the same.
    """
    checksums = dict(sha256 or {})
    config = FilesDownloadConfig(ensure_versioned(urls), this_output_path(), ensure_versioned(checksums))
    names_of(urls, checksums)
    return ExecutorStep(
        name,
        download_files,
        config,
        description=description,
        override_output_path=override_output_path,
        resumable=RESUMABLE,
        cluster=cluster,
        secrets=dict(secrets or {}),
    )
