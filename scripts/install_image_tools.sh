#!/usr/bin/env bash
# Install Debian's tools for `make images-test`, which builds images without a Docker daemon, unless they are there.
set -euo pipefail

missing=()
for tool in buildah debootstrap docker-registry; do
    command -v "$tool" > /dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "${missing[*]} missing. Install as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
