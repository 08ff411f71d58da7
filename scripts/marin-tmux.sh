#!/usr/bin/env bash
# A tmux session with a shell and, below it, the dashboard of a cluster. A session that is there already is attached.
# Usage: scripts/marin-tmux.sh [CLUSTER]
set -euo pipefail
cluster=${1:-us-central2}
session=marin
config=infra/clusters/$cluster.yaml

if [[ ! $cluster =~ ^[a-z][a-z0-9-]*$ ]]; then  # it is typed into a shell
    echo "$(printf %q "$cluster") is no name of a cluster: lower-case letters, digits and hyphens." >&2
    exit 1
fi
if ! command -v tmux > /dev/null; then
    echo "tmux is not installed: apt-get install tmux" >&2
    exit 1
fi
cd "$(dirname "$0")/.."
if ! tmux has-session -t "=$session" 2> /dev/null; then
    if [ ! -f "$config" ]; then
        echo "There is no $config: name a cluster of the fleet file, such as us-central2." >&2
        exit 1
    fi
    tmux new-session -d -s "$session"
    # In the shell that tmux starts, so that it can be started again when it ends.
    dashboard=$(tmux split-window -v -l 30% -P -F '#{pane_id}' -t "=$session:")
    tmux send-keys -t "$dashboard" "${TRADEWIND_DASHBOARD:-ray dashboard} $config" Enter
    tmux select-pane -t "=$session:.0"
fi
if [ -t 1 ]; then
    exec tmux attach -t "=$session"
fi
echo "tmux session $session is up: tmux attach -t $session"
