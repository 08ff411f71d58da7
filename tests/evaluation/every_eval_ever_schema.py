"""What Every Eval Ever 0.3.0 requires of the two files that Tradewind writes, as JSON Schema.

Its package, which needs Python 3.12, accepted the files of ``test_results.py`` when this was written.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
BOUND = {"oneOf": [NUMBER, {"enum": ["Infinity", "-Infinity"]}]}


def strict(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of objects with these fields and no others."""
    properties = required | (optional or {})
    return {
        "type": "object", "required": list(required), "properties": properties, "additionalProperties": False
    }  # fmt: skip


_METRIC = strict(
    {
        "lower_is_better": {"type": "boolean"},
        "score_type": {"enum": ["binary", "continuous"]},
        "min_score": BOUND,
        "max_score": BOUND,
    },
    {"metric_id": TEXT, "metric_name": TEXT},
)
_RESULT = strict(
    {
        "evaluation_name": TEXT,
        "source_data": strict({"dataset_name": TEXT, "source_type": {"const": "other"}}),
        "metric_config": _METRIC,
        "score_details": strict(
            {"score": NUMBER},
            {
                "details": TEXTS,
                "uncertainty": strict(
                    {"num_samples": {"type": "integer"}},
                    {
                        "confidence_interval": strict(
                            {"lower": NUMBER, "upper": NUMBER}, {"confidence_level": {"const": 0.95}, "method": TEXT}
                        )
                    },
                ),
            },
        ),
    },
    {"evaluation_result_id": TEXT},
)
_DETAILS = {
    "type": "object",
    "required": ["deployment_type", "model_availability"],
    "properties": {
        "deployment_type": {"enum": ["self_deployed", "externally_managed", "unknown"]},
        "model_availability": {"enum": ["open_weights", "closed_weights", "unknown"]},
    },
    "additionalProperties": TEXT,
}
AGGREGATE = strict(
    {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": TEXT,
        "retrieved_timestamp": {"type": "string", "pattern": "^[0-9]+$"},
        "source_metadata": strict(
            {
                "source_type": {"enum": ["documentation", "evaluation_run"]},
                "source_organization_name": TEXT,
                "evaluator_relationship": {"enum": ["first_party", "third_party", "collaborative", "other"]},
            },
            {"source_name": TEXT},
        ),
        "model_info": strict(
            {"name": TEXT, "id": {"type": "string", "pattern": "^[^/]+/[^/]+$"}, "additional_details": _DETAILS},
            {"inference_engine": strict({"name": TEXT}, {"version": TEXT})},
        ),
        "eval_library": strict({"name": TEXT, "version": TEXT}),
        "evaluation_results": {"type": "array", "items": _RESULT, "minItems": 1},
    },
    {
        "evaluation_timestamp": TEXT,
        "detailed_evaluation_results": strict(
            {
                "format": {"const": "jsonl"},
                "file_path": {
                    "type": "string",
                    "pattern": "^data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-"
                    "[0-9a-f]{12}_samples\\.jsonl$",
                },
            },
            {"hash_algorithm": {"const": "sha256"}, "checksum": TEXT, "total_rows": {"type": "integer", "minimum": 1}},
        ),
    },
)
INSTANCE = strict(
    {
        "schema_version": {"const": "0.3.0"},
        "evaluation_id": TEXT,
        "model_id": TEXT,
        "evaluation_name": TEXT,
        "sample_id": TEXT,
        "interaction_type": {"const": "single_turn"},
        "input": strict({"raw": TEXT, "reference": {"type": "array", "items": TEXT}}),
        "output": strict({"raw": {"type": "array", "items": TEXT}}),
        "answer_attribution": {
            "type": "array",
            "items": strict(
                {
                    "turn_idx": {"const": 0},
                    "source": TEXT,
                    "extracted_value": TEXT,
                    "extraction_method": TEXT,
                    "is_terminal": {"type": "boolean"},
                }
            ),
        },
        "evaluation": strict({"score": NUMBER, "is_correct": {"type": "boolean"}}),
    },
    {"evaluation_result_id": TEXT, "sample_hash": TEXT},
)
