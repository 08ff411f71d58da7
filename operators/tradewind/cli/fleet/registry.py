"""``tradewind registry set-cleanup-policy``: what the repositories of images remove by themselves."""

from __future__ import annotations

import argparse

from tradewind.cli.errors import CommandError, UsageError
from tradewind.cli.fleet.fleet_file import load_chosen_fleet
from tradewind.cli.output import say, write_lines
from tradewind.fleet.cloud.google_api import CloudError, google_api
from tradewind.fleet.cloud.registry import (
    NEWEST_KEPT,
    OLDEST_DAYS,
    CleanupState,
    ImageRepository,
    cleanup_state,
    fleet_repositories,
    set_cleanup,
)


def set_cleanup_policy(arguments: argparse.Namespace) -> int:
    """Set the clean-up of each repository, or with ``--check`` only say how it is; every one is gone through.

    Raises:
        UsageError: No repository is named, or two ways at once.
        CommandError: One could not be set, or is not as it should be.
    """
    client = google_api("artifactregistry")
    repositories = _named(arguments)
    wrong = sum(not _handled(repository, client, is_check=arguments.check) for repository in repositories)
    if wrong:
        to_do = "are not as they should be" if arguments.check else "could not be set"
        raise CommandError(f"{wrong} of {len(repositories)} repositories {to_do}.")
    return 0


def _named(arguments: argparse.Namespace) -> list[ImageRepository]:
    if arguments.all:
        if arguments.region or arguments.project:
            raise UsageError("--all takes project and regions from the fleet file: leave --region and --project out.")
        found = fleet_repositories(load_chosen_fleet(arguments.fleet))
        named = [each for each in found if arguments.repository in (None, each.name)]
        if not named:
            raise UsageError(f"No cluster of the fleet has its image in a repository {arguments.repository!r}.")
        return named
    if not arguments.repository or not arguments.region:
        raise UsageError("Name a repository and its --region, or all those of the fleet with --all.")
    project = arguments.project or load_chosen_fleet(arguments.fleet).cluster().project
    return [ImageRepository(project, region, arguments.repository) for region in dict.fromkeys(arguments.region)]


def _handled(repository: ImageRepository, client: object, *, is_check: bool) -> bool:
    """Whether the clean-up of ``repository`` is right now."""
    try:
        state = cleanup_state(repository, client)
        if not is_check and not state.is_right:
            set_cleanup(repository, state, client)
    except CloudError as error:
        say(str(error))
        return False
    write_lines([f"{repository.path}: {_words(state, is_check=is_check)}"])
    return state.is_right or not is_check


def _words(state: CleanupState, *, is_check: bool) -> str:
    others = f"; also {', '.join(state.others)}, which stays" if state.others else ""
    if state.is_right:
        return f"removes what is older than {OLDEST_DAYS} days, but the newest {NEWEST_KEPT}{others}"
    if not is_check:
        return f"now removes what is older than {OLDEST_DAYS} days, but the newest {NEWEST_KEPT}{others}"
    missing = f"lacks {' and '.join(state.missing)}" if state.missing else "only says what it would remove (dry run)"
    return f"{missing}{others}"
