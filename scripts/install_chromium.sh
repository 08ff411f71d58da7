#!/usr/bin/env bash
# Install Debian's Chromium, for pictures and tests of web pages, unless there is one already.
set -euo pipefail

if command -v chromium > /dev/null; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Chromium is missing. Install it as root: apt-get install chromium" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null
