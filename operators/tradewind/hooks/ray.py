"""The hook of a Ray connection."""

from tradewind.deployment.ray_connection import RayHook

__all__ = ["RayHook"]
