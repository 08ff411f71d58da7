"""Metadata of this Airflow provider. Every Airflow process imports this, so it imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-tradewind",
        "name": "Tradewind",
        "description": "Machine-learning pipelines on Ray clusters of preemptible Cloud TPU slices.",
        "hooks": [
            {"integration-name": "Ray", "python-modules": ["tradewind.hooks.ray"]},
            {"integration-name": "Tradewind", "python-modules": ["tradewind.hooks.step_version"]},
            {"integration-name": "Google Cloud TPU", "python-modules": ["tradewind.hooks.cloud_tpu"]},
        ],
        "operators": [
            {
                "integration-name": "Tradewind",
                "python-modules": [
                    "tradewind.operators.plan",
                    "tradewind.operators.step",
                    "tradewind.operators.tpu_pod_train",
                ],
            },
            {
                "integration-name": "Ray",
                "python-modules": [
                    "tradewind.operators.restart_cluster",
                    "tradewind.operators.fleet",
                    "tradewind.operators.ray_job",
                    "tradewind.operators.reconcile",
                    "tradewind.operators.serve_model",
                    "tradewind.operators.stop_ray_job",
                ],
            },
        ],
        "sensors": [
            {"integration-name": "Ray", "python-modules": ["tradewind.sensors.ray_job"]},
            {"integration-name": "Google Cloud TPU", "python-modules": ["tradewind.sensors.tpu_slices"]},
        ],
        "triggers": [
            {
                "integration-name": "Tradewind",
                "python-modules": ["tradewind.triggers.lease", "tradewind.triggers.step_job"],
            },
            {
                "integration-name": "Ray",
                "python-modules": ["tradewind.triggers.ray_job", "tradewind.triggers.ray_job_sensor"],
            },
            {"integration-name": "Google Cloud TPU", "python-modules": ["tradewind.triggers.tpu_slices"]},
        ],
        "task-decorators": [{"name": "ray", "class-name": "tradewind.decorators.ray.ray_task"}],
        "extra-links": ["tradewind.links.ray.RayJobLink", "tradewind.links.ray.RayLogLink"],
        "connection-types": [_RAY_CONNECTION],
        "cli": ["tradewind.cli.airflow_commands.get_cmds"],
        "config": {"tradewind": _CONFIG_SECTION},
    }


_RAY_CONNECTION: dict[str, Any] = {
    "connection-type": "ray",
    "hook-class-name": "tradewind.hooks.ray.RayHook",
    "hook-name": "Ray",
    "ui-field-behaviour": {
        "hidden-fields": ["login", "schema", "port"],
        "relabeling": {"host": "Dashboard address", "password": "Token"},
        "placeholders": {
            "host": "http://10.0.0.2:8265",
            "password": "only for a cluster that asks for a token",
            "token_file": "/etc/airflow/secrets/ray-token",
            "token_secret": "projects/my-project/secrets/ray-token",
            "ca": "/etc/ssl/certs/our-ca.pem",
            "slice_types": "v4-8, v4-16",
        },
    },
    "conn-fields": {
        "token_file": {
            "label": "Token file",
            "description": (
                "Instead of the token: path, on the Airflow machines, of a file that holds it. Only its owner may be "
                "able to read the file (mode 0600)."
            ),
            "schema": {"type": ["string", "null"]},
        },
        "token_secret": {
            "label": "Token secret",
            "description": (
                "Instead of the token: its name in Secret Manager, projects/PROJECT/secrets/SECRET. The Airflow "
                "machines' service account needs to be a Secret Accessor."
            ),
            "schema": {"type": ["string", "null"]},
        },
        "verify": {
            "label": "Check TLS certificate",
            "description": "Switch off only for a cluster behind a self-signed certificate that you trust.",
            "schema": {"type": ["boolean", "null"], "default": True},
        },
        "ca": {
            "label": "CA bundle",
            "description": "Path, on the Airflow machines, of the certificates to check the cluster's with.",
            "schema": {"type": ["string", "null"]},
        },
        "bucket": {
            "label": "Bucket",
            "description": "Where outputs go when nothing else gives a prefix, such as gs://my-bucket.",
            "schema": {"type": ["string", "null"]},
        },
        "region": {
            "label": "Region",
            "description": "The region of the cluster and of its bucket, such as us-central2.",
            "schema": {"type": ["string", "null"]},
        },
        "slice_types": {
            "label": "Slice types",
            "description": (
                "The types of TPU slices that the cluster has, with commas, such as v4-8, v4-16. Steps that ask for "
                "another one are refused. Empty: not stated."
            ),
            "schema": {"type": ["string", "array", "null"]},
        },
        "ship": {
            "label": "Ship Tradewind",
            "description": "auto, always or never, instead of [tradewind] ship: whether Tradewind travels with a job.",
            "schema": {"type": ["string", "null"]},
        },
        "python": {
            "label": "Python",
            "description": "Path on the cluster of the Python for steps and functions. Empty: that of Ray's workers.",
            "schema": {"type": ["string", "null"]},
        },
    },
}

_CONFIG_SECTION: dict[str, Any] = {
    "description": "Tradewind: where steps run and where their outputs go.",
    "options": {
        "prefix": {
            "description": "Where outputs go, when neither the DAG nor its run says: a path or a URL of a store.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "gs://my-bucket/pipelines",
            "default": None,
        },
        "allowed_roots": {
            "description": (
                "Below what folders and buckets steps may write, and records and pages be read, one a line or with "
                "commas. Empty: the prefix, and in tasks also what the DAG's author gives as prefix and the buckets of "
                "the clusters that the DAG names."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "gs://my-bucket, gs://my-other-bucket/shared",
            "default": None,
        },
        "mirror_prefixes": {
            "description": (
                "The prefixes of all regions, one a line or with commas: from these mirrored() copies a path that is "
                "missing below the run's own. The environment variable TRADEWIND_MIRROR_PREFIXES comes first. Empty: "
                "the buckets of the clusters in the fleet file."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "gs://my-bucket-us, gs://my-bucket-eu",
            "default": None,
        },
        "default_cluster": {
            "description": "The cluster of steps that name none, by the id of its 'ray' connection.",
            "version_added": "0.1.0",
            "type": "string",
            "example": None,
            "default": "ray_default",
        },
        "fleet_file": {
            "description": (
                "The fleet file, which describes the clusters: commands about them read it, and plans take from it "
                "where buckets are. The environment variable TRADEWIND_FLEET comes first."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "/opt/airflow/infra/fleet.yaml",
            "default": None,
        },
        "announce_notifiers": {
            "description": (
                "The notifiers that announcements about clusters go through: a JSON list with the classpath of each "
                "and its kwargs, whose templates have announcement, clusters and announced_by."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": (
                '[{"classpath": "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", '
                '"kwargs": {"slack_webhook_conn_id": "slack", "text": "{{ announcement }}"}}]'
            ),
            "default": None,
        },
        "deployment": {
            "description": (
                "The name of this Airflow in its leases and in the metadata of its Ray jobs. Set it where several "
                "Airflows share a prefix or a cluster; jobs of deleted runs are stopped only where it is set."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "research-production",
            "default": None,
        },
        "ship": {
            "description": (
                "Whether Tradewind travels with steps, functions and secrets to a cluster: auto (used where the "
                "cluster has none or another version), always, or never. A connection's extra 'ship' comes first."
            ),
            "version_added": "0.1.0",
            "type": "string",
            "example": "never",
            "default": "auto",
        },
        "uv_options": {
            "description": "Further options for uv when it builds the environment of a step on a cluster.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "--no-index --find-links /wheels",
            "default": None,
        },
        "lease_heartbeat_seconds": {
            "description": (
                "Heartbeat interval: how often a lease owner renews its lease. After two intervals without renewal it "
                "stops itself; after three, another attempt may start."
            ),
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "30",
        },
    },
}
