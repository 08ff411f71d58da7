#!/usr/bin/env bash
# In an image, as root: what nodes need of the system, and gcloud at GCLOUD_VERSION unless the base has one.
# Usage: install_system.sh [PACKAGE...]
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

# Secrets of this step alone, so no layer has them.
ca=() sources=()
if [ -e /run/secrets/ca_certificates ]; then
    ca=(-o "Acquire::https::CaInfo=/run/secrets/ca_certificates")
    export CURL_CA_BUNDLE=/run/secrets/ca_certificates
fi
if [ -e /run/secrets/apt_sources ]; then
    sources=(-o "Dir::Etc::sourcelist=/run/secrets/apt_sources" -o "Dir::Etc::sourceparts=-")
fi
apt=(apt-get -qq "${ca[@]}" "${sources[@]}")

"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends ca-certificates curl git gnupg openssh-client procps rsync sudo "$@" > /dev/null
if ! command -v gcloud > /dev/null && [ -n "${GCLOUD_VERSION:-}" ]; then
    archive=https://packages.cloud.google.com/apt
    curl -fsSL "$archive/doc/apt-key.gpg" | gpg --dearmor -o /usr/share/keyrings/cloud.google.gpg
    echo "deb [signed-by=/usr/share/keyrings/cloud.google.gpg] $archive cloud-sdk main" \
        > /etc/apt/sources.list.d/google-cloud-sdk.list
    apt-get -qq "${ca[@]}" update
    apt-get -qq "${ca[@]}" install -y --no-install-recommends "google-cloud-cli=$GCLOUD_VERSION" > /dev/null
fi
rm -rf /var/lib/apt/lists/*
