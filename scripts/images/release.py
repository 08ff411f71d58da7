"""Release a pushed image to clusters: write its tag to the fleet file, and update the cluster files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scripts.images.builder import Builder
from scripts.images.commands import FailedCommandError
from scripts.images.places import Image, Repository, users
from tradewind.fleet.cluster_files import GeneratedFiles, set_tags
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet


def push_all(
    builder: Builder, image: Image, repositories: Iterable[Repository], tags: Sequence[str]
) -> tuple[list[Repository], list[str]]:
    """Push to each repository, also after failures; return those that have the image, and the errors."""
    pushed, problems = [], []
    for repository in repositories:
        try:
            builder.push(image, repository, tags)
        except FailedCommandError as error:
            problems.append(f"{repository.region}: {error}")
        else:
            pushed.append(repository)
    return pushed, problems


def name_tag(fleet: Fleet, image: Image, pushed: Collection[Repository], tag: str, *, is_dry: bool) -> None:
    """Set ``tag`` for the clusters that pull the image from these repositories, except staging ones.

    Raises:
        FleetError: The fleet file or a file generated from it cannot be written.
    """
    chosen = [
        cluster.name
        for cluster in (users(fleet, image, ()) if image.is_of_clusters else ())
        if Repository(cluster.region, cluster.project, cluster.repository) in pushed and not cluster.staging
    ]
    if not chosen:
        print(f"No cluster of {fleet.file} gets the tag {tag}.")
    elif is_dry:
        print(f"{fleet.file}: {', '.join(chosen)} would get the tag {tag}.")
    else:
        set_tags(fleet.file, chosen, tag)
        print(f"{fleet.file}: {', '.join(chosen)} have the tag {tag}.")
        for sentence in GeneratedFiles.of(load_fleet(fleet.file)).update():
            print(sentence)


def refuse_unfinished(problems: Sequence[str], pushed: Collection[Repository]) -> None:
    """Report failed pushes, and the next step.

    Raises:
        FleetError: A push failed.
    """
    if problems:
        regions = " ".join(dict.fromkeys(problem.partition(":")[0] for problem in problems))
        lines = "\n".join(problems)
        raise FleetError(
            f"{lines}\n{len(pushed)} repositories have the image. For the others, once that is mended: "
            f'make cluster_docker CLUSTER_REPOS="{regions}"'
        )
