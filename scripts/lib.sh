# shellcheck shell=bash
# Shared by the scripts; to be sourced. Finds or installs what they need on Debian or Ubuntu.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# A line of progress, with minutes and seconds since the start, which a script that calls another one hands on.
export REDISSON_LOCK_SCRIPT_START=${REDISSON_LOCK_SCRIPT_START:-$(date +%s)}
say() {
    local since=$(($(date +%s) - REDISSON_LOCK_SCRIPT_START))
    printf '\n[%02d:%02d] %s\n' $((since / 60)) $((since % 60)) "$*"
}
fail() { printf '%s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# packages NAME...: installs them with apt-get, as root or through sudo.
packages() {
    have apt-get || fail "please install: $*"
    local sudo=
    if [ "$(id -u)" != 0 ]; then
        have sudo || fail "please install, as root: apt-get install $*"
        sudo=sudo
    fi
    say "installing with apt-get: $*"
    $sudo apt-get update -qq &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        fail "apt-get could not install: $*"
}

# The name of a Redis server program on PATH; installs one if there is none.
redis_binary() {
    have redis-server || have valkey-server || packages redis-server >&2
    if have redis-server; then echo redis-server; else echo valkey-server; fi
}

# Where rustup puts it, for a shell that was not started anew since.
have cargo || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
have cargo || fail "Rust is missing: see https://rustup.rs"
have cc || packages gcc libc6-dev
