"""What evaluations measure: ``EvalTaskConfig``, and lists of tasks of the LM Evaluation Harness under Marin's names.

Order, shots and aliases of the lists are those of November 2025, because they count in the versions of evaluations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.text import truncated_repr

__all__ = [
    "ACTION_TASKS",
    "BASE_GENERATION_TASKS",
    "BIAS_SAFETY_TASKS",
    "CODE_TASKS",
    "CORE_TASKS",
    "CORE_TASKS_PLUS_LEADERBOARD",
    "CORE_TASKS_PLUS_MMLU",
    "EMOTIONAL_ETHICS_TASKS",
    "KEY_GENERATION_TASKS",
    "KEY_MULTIPLE_CHOICE_TASKS",
    "KNOWLEDGE_TASKS",
    "LANGUAGE_TASKS",
    "MATH_TASKS",
    "MEDICAL_TASKS",
    "MMLU_0_SHOT",
    "MMLU_5_SHOT",
    "MMLU_PRO_5_SHOT",
    "MMLU_TASKS",
    "OPEN_LM_LEADERBOARD_GEN",
    "OPEN_LM_LEADERBOARD_MCQ",
    "REASONING_TASKS",
    "SPECIALIZED_TASKS",
    "TRUTHFULNESS_TASKS",
    "EvalTaskConfig",
    "check_tasks",
    "labels",
]


@dataclass(frozen=True)
class EvalTaskConfig:
    """A task of an evaluation harness, as a value; a step's version contains it.

    Attributes:
        name: The harness's name of a task, or of a group of tasks such as ``mmlu``.
        num_fewshot: Solved examples before each question; None for the number that the task states.
        task_alias: Its name in results; see ``labels``.
    """

    name: str
    num_fewshot: int | None = None
    task_alias: str | None = None

    def __post_init__(self) -> None:
        for field in ("name", "task_alias"):
            given = getattr(self, field)
            if (given is not None or field == "name") and not _is_name(given):
                raise ValueError(
                    f"The {field} of an evaluation's task is {truncated_repr(given)}, which is no name: give text of "
                    "letters, digits and signs within one line."
                )
        shots = self.num_fewshot
        if shots is not None and (type(shots) is not int or shots < 0):
            raise ValueError(
                f"Task {truncated_repr(self.name)}: num_fewshot is {truncated_repr(shots)}: give a number of examples, "
                "0 for none, or None for the task's own."
            )


def _is_name(given: object) -> bool:
    return isinstance(given, str) and bool(given.strip()) and given.isprintable() and len(given) <= 200


def check_tasks(evals: Any) -> tuple[EvalTaskConfig, ...]:
    """Return an evaluation's tasks, given as one or several names or configs.

    Raises:
        TypeError: One is something else.
        ValueError: There is none, or one is there twice.
    """
    given = [evals] if isinstance(evals, (str, EvalTaskConfig)) else evals
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise TypeError(f"evals is {truncated_repr(evals)}: give a list of EvalTaskConfig, or of names of tasks.")
    tasks = [EvalTaskConfig(each) if isinstance(each, str) else each for each in given]
    for position, task in enumerate(tasks):
        if not isinstance(task, EvalTaskConfig):
            raise TypeError(f"evals[{position}] is {truncated_repr(task)}: give an EvalTaskConfig, or a task's name.")
    if not tasks:
        raise ValueError("evals is empty, so there is nothing to measure: give names of tasks.")
    labels(tasks)
    return tuple(tasks)


def labels(tasks: Sequence[EvalTaskConfig]) -> list[str]:
    """Return the names of tasks in results: alias or name, and where these agree, the name with the shots.

    Raises:
        ValueError: Two are the same.
    """
    short = [task.task_alias or task.name for task in tasks]
    found = [
        label if short.count(label) == 1 else f"{task.name}_{'default' if shots is None else shots}shot"
        for label, task, shots in zip(short, tasks, (task.num_fewshot for task in tasks), strict=True)
    ]
    twice = next((label for label in found if found.count(label) > 1), None)
    if twice is not None:
        raise ValueError(
            f"evals has two tasks that the results would both call {truncated_repr(twice)}: leave one out, or give it "
            "a task_alias."
        )
    return found


def _aliased(names: str) -> tuple[EvalTaskConfig, ...]:
    """Read ``name[:shots[:alias]]`` separated by spaces: 0 shots, and ``{name}_{shots}shot``, unless given."""
    tasks = []
    for each in names.split():
        name, shots, alias = (*each.split(":"), "", "")[:3]
        tasks.append(EvalTaskConfig(name, int(shots or 0), alias or f"{name}_{shots or 0}shot"))
    return tuple(tasks)


def _plain(names: str) -> tuple[EvalTaskConfig, ...]:
    """Read ``name:shots`` separated by spaces, without aliases."""
    pairs = (each.split(":") for each in names.split())
    return tuple(EvalTaskConfig(name, int(shots)) for name, shots in pairs)


_HELLASWAG: Final = _aliased("hellaswag hellaswag:10")
CORE_TASKS: Final = (
    *_plain("agieval_lsat_ar:3 arc_easy:10 arc_challenge:10 boolq:10 commonsense_qa:10 copa:0"),
    *_HELLASWAG,
    *_plain("lambada_openai:0 openbookqa:0 piqa:10 wsc273:0 winogrande:0"),
)
"""Multiple choice for base models: a part of the core tasks on page 43 of https://arxiv.org/pdf/2406.11794."""
MMLU_0_SHOT, MMLU_5_SHOT = MMLU_TASKS = _aliased("mmlu mmlu:5")
MMLU_PRO_5_SHOT: Final = EvalTaskConfig("leaderboard_mmlu_pro", 5, "mmlu_5shot")
"""The alias is that of MMLU, as in Marin."""
CORE_TASKS_PLUS_MMLU: Final = CORE_TASKS + MMLU_TASKS
CORE_TASKS_PLUS_LEADERBOARD: Final = (
    *_aliased("leaderboard_bbh:3:bbh_3shot leaderboard_gpqa:0:gpqa_0shot"),
    *CORE_TASKS,
)
OPEN_LM_LEADERBOARD_MCQ: Final = _aliased(
    "leaderboard_bbh:3:lb_bbh_3shot leaderboard_mmlu_pro:5:lb_mmlu_pro_5shot leaderboard_gpqa:0:lb_gpqa_0shot "
    "leaderboard_musr:0:lb_musr_0shot"
)
OPEN_LM_LEADERBOARD_GEN: Final = _aliased("leaderboard_ifeval:0:lb_ifeval_0shot leaderboard_math_hard:4:lb_math_4shot")
BASE_GENERATION_TASKS: Final = (
    *_plain("bbh_cot_fewshot:3 gsm8k_cot:8"),
    *_aliased("nq_open:0:nq_open triviaqa:0:triviaqa"),
)
"""The tasks below need text that the model generates, not only probabilities of given texts."""
KEY_GENERATION_TASKS: Final = (
    *_plain("ifeval:0 gsm8k_cot:8 drop:0 humaneval:10"),
    *_aliased("bbh_cot_fewshot:3:bbh minerva_math:4:math_4shot"),
)
KEY_MULTIPLE_CHOICE_TASKS: Final = (*MMLU_TASKS, *_aliased("truthfulqa_mc2:6:truthqa"))

REASONING_TASKS: Final = _aliased(
    "anli_r1 anli_r2 anli_r3 arc_easy:25 arc_challenge:25 babi bbh_zeroshot bbh_fewshot:3 bbh_cot_zeroshot "
    "bbh_cot_fewshot:3 commonsense_qa copal_id_standard copal_id_colloquial logiqa logiqa2 logieval:1:logiqa2_1shot "
    "mastermind_24_easy mastermind_24_hard mastermind_35_easy mastermind_35_hard mastermind_46_easy "
    "mastermind_46_hard openbookqa piqa social_iqa winogrande:5 wsc273"
)
MATH_TASKS: Final = _aliased(
    "gsm8k:5 gsm8k_cot:8 arithmetic_1dc arithmetic_2da arithmetic_2dm arithmetic_2ds arithmetic_3da arithmetic_3ds "
    "arithmetic_4da arithmetic_4ds arithmetic_5da arithmetic_5ds asdiv hendrycks_math_algebra "
    "hendrycks_math_counting_and_prob hendrycks_math_geometry hendrycks_math_intermediate_algebra "
    "hendrycks_math_num_theory hendrycks_math_prealgebra hendrycks_math_precalc mathqa"
)
LANGUAGE_TASKS: Final = _aliased(
    "coqa drop cola mnli mrpc qnli qqp rte sst2 wnli lambada_openai lambada_standard lambada_openai_cloze_yaml "
    "lambada_standard_cloze_yaml mutual mutual_plus nq_open race squad_completion squadv2 swag triviaqa wikitext"
)
CODE_TASKS: Final = _aliased(
    "code2text_go code2text_java code2text_javascript code2text_php code2text_python code2text_ruby "
    "jsonschema_bench_easy:2 jsonschema_bench_medium:2 jsonschema_bench_hard:2 humaneval"
)
MEDICAL_TASKS: Final = _aliased(
    "careqa_en careqa_es med_concepts_qa medmcqa medqa_4options:0:medqa_0shot pubmedqa kormedmcqa_dentist "
    "kormedmcqa_doctor kormedmcqa_nurse kormedmcqa_pharm"
)
KNOWLEDGE_TASKS: Final = _aliased("agieval cmmlu kmmlu mmlu_pro:5")
EMOTIONAL_ETHICS_TASKS: Final = _aliased(
    "eq_bench ethics_cm ethics_deontology ethics_justice ethics_utilitarianism ethics_virtue moral_stories "
    "histoires_morales"
)
BIAS_SAFETY_TASKS: Final = _aliased(
    "bbq cabbq crows_pairs_english_age crows_pairs_english_autre crows_pairs_english_disability "
    "crows_pairs_english_gender crows_pairs_english_nationality crows_pairs_english_physical_appearance "
    "crows_pairs_english_race_color crows_pairs_english_religion crows_pairs_english_sexual_orientation "
    "crows_pairs_english_socioeconomic realtoxicityprompts simple_cooccurrence_bias toxigen "
    "winogender_all:0:winogender_0shot"
)
ACTION_TASKS: Final = _aliased(
    "acp_areach_bool acp_app_bool acp_just_bool acp_land_bool acp_prog_bool acp_reach_bool acp_val_bool "
    "acp_areach_mcq acp_app_mcq acp_just_mcq acp_land_mcq acp_prog_mcq acp_reach_mcq acp_val_mcq mc_taco groundcocoa"
)
TRUTHFULNESS_TASKS: Final = _aliased("truthfulqa_mc1:0:truthfulqa_0shot truthfulqa_mc2 truthfulqa_gen")
SPECIALIZED_TASKS: Final = _aliased(
    "fda fld_default fld_star haerae prost qa4mre_2011 qa4mre_2012 qa4mre_2013 qasper_bool qasper_freeform sciq swde "
    "webqs"
)
