# shellcheck shell=sh
# Ray starts commands in login shells, whose /etc/profile sets PATH anew: here it is again the one of the image.
if [ -n "${TRADEWIND_PATH:-}" ]; then
    export PATH="$TRADEWIND_PATH"
fi
