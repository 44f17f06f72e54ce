# Sourced by every script here: strict, at the root of the repository, with no standard input.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
exec </dev/null
target=${CARGO_TARGET_DIR:-target}
[[ -z ${CI:-} ]] || export CARGO_INCREMENTAL=0 # built once, from nothing
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}
