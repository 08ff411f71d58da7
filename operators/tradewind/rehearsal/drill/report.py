"""What a drill found: which faults came, what each cost, and whether the outputs are those of an undisturbed run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tradewind.rehearsal.drill.charges import charge_problems
from tradewind.rehearsal.drill.outputs import OutputVerdict
from tradewind.rehearsal.drill.records import RunRecord
from tradewind.rehearsal.drill.stories import FaultStory
from tradewind.text_table import aligned


@dataclass(frozen=True)
class DrillReport:
    """The whole drill."""

    dag: str
    seed: int
    state: str
    """Of the disturbed run."""
    stories: tuple[FaultStory, ...]
    record: RunRecord
    """Of the disturbed run."""
    undisturbed: RunRecord
    outputs: tuple[OutputVerdict, ...]
    leaks: tuple[str, ...] = field(default=())
    """Processes and slices that should not be there at the end."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the drill is not passed, a sentence each; none if it is."""
        found = [] if self.state == "success" else [f"The run ended as {self.state}."]
        found += [f"The fault {story.fault} {_unheld(story)}." for story in self.stories if story.recovery_s is None]
        found += charge_problems(self.stories, self.record)
        found += [f"In the undisturbed run, a pod {event.name}: {event.cause}." for event in self.undisturbed.ends]
        found += [*self.record.unread, *self.undisturbed.unread]
        found += [f"The output {output.step} is different." for output in self.outputs if not output.is_equal]
        found += [] if self.outputs else ["There are no outputs to compare."]
        return (*found, *(f"Left behind: {leak}." for leak in self.leaks))

    @property
    def has_passed(self) -> bool:
        """Whether each fault hit something, was charged rightly and cost what it may, and the run ended well."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "dag": self.dag,
            "seed": self.seed,
            "passed": self.has_passed,
            "problems": list(self.problems),
            "state": self.state,
            "faults": [{**asdict(story), "lost_steps": story.lost_steps} for story in self.stories],
            "disturbed": self.record.to_json(),
            "undisturbed": self.undisturbed.to_json(),
            "outputs": [output.to_json() for output in self.outputs],
            "leaks": list(self.leaks),
        }

    def text(self) -> str:
        """The report for people."""
        lines = [f"Drill of {self.dag}, seed {self.seed}: {'passed' if self.has_passed else 'NOT passed'}", ""]
        heads = ("fault", "at step", "recovered after", "steps lost", "what")
        lines += aligned([heads, *map(_story_row, self.stories)])
        lines += ["", *self._figures(), "", *map(_output_line, self.outputs), *self.problems]
        return "\n".join(lines) + "\n"

    def _figures(self) -> list[str]:
        record = self.record
        return [
            f"Run: {self.state}; {record.attempts} attempts, {record.preemptions} preemptions, "
            f"{record.failures} failures",
            f"Pods: {record.wall_s:.1f} s, goodput {_share(record)}; undisturbed {self.undisturbed.wall_s:.1f} s, "
            f"goodput {_share(self.undisturbed)}",
        ]


def _share(record: RunRecord) -> str:
    return "unknown" if record.goodput is None else f"{record.goodput:.0%}"


def _story_row(story: FaultStory) -> tuple[str, ...]:
    recovered = "-" if story.recovery_s is None else f"{story.recovery_s:.1f} s"
    lost = "-" if story.lost_steps is None else str(story.lost_steps)
    step = f"({story.planned_step})" if story.at_step is None else str(story.at_step)
    return story.fault, step, recovered, lost, story.what or "-"


def _unheld(story: FaultStory) -> str:
    return "was not followed by any training" if story.what else "did not come: the run had ended before its step"


def _output_line(output: OutputVerdict) -> str:
    loss = "" if output.final_loss is None else f", final loss {output.final_loss!r}"
    if output.is_equal:
        return f"{output.step}: equal ({output.files} files{loss})"
    return f"{output.step}: DIFFERENT{loss}, undisturbed {output.undisturbed_loss!r}: {'; '.join(output.different)}"
