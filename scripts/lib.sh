# Shared by the scripts; to be sourced. Finds or installs what they need on Debian or Ubuntu.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '\n[%s] %s\n' "$(date +%H:%M:%S)" "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# install PACKAGE...: with apt-get, as root or through sudo.
install() {
    have apt-get || fail "please install: $*"
    local sudo=
    if [ "$(id -u)" != 0 ]; then
        have sudo || fail "please install, as root: apt-get install $*"
        sudo=sudo
    fi
    say "installing $*"
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# The name of a Redis server binary on PATH; installs one if there is none.
redis_binary() {
    have redis-server || have valkey-server || install redis-server >&2
    if have redis-server; then echo redis-server; else echo valkey-server; fi
}

have cargo || fail "Rust is missing: see https://rustup.rs"
have cc || install gcc libc6-dev
