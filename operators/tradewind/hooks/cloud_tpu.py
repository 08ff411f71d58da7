"""The hook of Google Cloud's TPUs."""

from tradewind.deployment.cloud_tpu import CloudTpuHook

__all__ = ["CloudTpuHook"]
