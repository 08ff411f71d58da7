#!/usr/bin/env bash
# Install what simulated machines need, for the tests that start whole clusters, unless it is there already.
set -euo pipefail

missing=()
[ -x /usr/sbin/sshd ] || missing+=(openssh-server)
command -v rsync > /dev/null || missing+=(rsync)
command -v ip > /dev/null || missing+=(iproute2)
command -v unshare > /dev/null || missing+=(util-linux)
if [ "${#missing[@]}" -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Simulated machines need ${missing[*]}. Install them as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
