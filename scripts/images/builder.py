"""Build, tag and push images with Docker, or with Podman or Buildah, whose commands are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.images.commands import Commands
from scripts.images.places import REGISTRY, Image, Repository

TOKEN: Final = ("gcloud", "auth", "print-access-token")
USER: Final = "oauth2accesstoken"
"""User name for Artifact Registry with an access token."""
MISSING: Final = "NOT_FOUND"


@dataclass(frozen=True)
class Builder:
    """Builds an image and pushes it to the repositories that clusters pull from.

    Attributes:
        program: docker, podman or buildah.
        registry: The registry of a region and project.
        secrets: Files for single steps of a build, by name.
    """

    commands: Commands
    program: str = "docker"
    registry: str = REGISTRY
    secrets: Mapping[str, Path] | None = None

    def build(self, image: Image, revision: str, arguments: Mapping[str, str]) -> None:
        """Build the image as NAME:latest from this checkout, for machines of Google Cloud."""
        given = {**image.build_arguments, "REVISION": revision, **arguments}
        options = [option for pair in sorted(given.items()) for option in ("--build-arg", "=".join(pair))]
        for name, file in (self.secrets or {}).items():
            options += ["--secret", f"id={name},src={file}"]
        made = ["--platform", "linux/amd64", "-f", image.dockerfile, "-t", f"{image.name}:latest", *options]
        self.commands.run([self.program, "build", *made, "."])

    def tag(self, image: Image, repositories: Iterable[Repository], tags: Iterable[str]) -> None:
        """Tag the built image with every name to push."""
        names = list(tags)
        for repository in repositories:
            for tag in names:
                reference = repository.reference(self.registry, image.name, tag)
                self.commands.run([self.program, "tag", f"{image.name}:latest", reference])

    def push(self, image: Image, repository: Repository, tags: Sequence[str]) -> None:
        """Create the repository if there is none, log in to its registry, and push every tag, `latest` last.

        Raises:
            FailedCommandError: A command failed.
        """
        self._ensure(repository)
        host = repository.reference(self.registry, image.name, "latest").partition("/")[0]
        self.commands.run([self.program, "login", "-u", USER, "--password-stdin", host], secret_input=TOKEN)
        for tag in sorted(tags, key=lambda tag: tag == "latest"):
            self.commands.run([self.program, "push", repository.reference(self.registry, image.name, tag)])

    def _ensure(self, repository: Repository) -> None:
        gcloud = ["gcloud", "artifacts", "repositories"]
        which = [repository.name, f"--location={repository.region}", f"--project={repository.project}"]
        if not self.commands.is_found([*gcloud, "describe", *which], MISSING):
            self.commands.run([*gcloud, "create", *which, "--repository-format=docker", "--quiet"])
