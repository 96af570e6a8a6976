# Makes .venv in the checkout, $root. Sourced by the scripts beside this folder.
#
# .venv/set-up.state holds what a finished set-up was made from; while one is under way it says only that.
# shellcheck shell=bash

root=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd -P)
venv=$root/.venv
state=$venv/set-up.state
under_way="under way"

# pip's words for a network that is down; the last are for an index that gave nothing at all.
no_network='connection broken by|Max retries exceeded|ConnectionError|TimeoutError|ProxyError|IncompleteRead'
no_network+='|from versions: none'

say() { printf 'normbench: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# set_up 'normbench[translation]', or 'normbench[translation,test]', which serves for both, or
# 'normbench[translation,test,ci]', which serves for all three: make sure that .venv holds it, at the versions in
# constraints.txt.
set_up() {
    is_ready "$1" && return
    wait_for_other_set_ups
    if ! is_ready "$1"; then
        trap 'say "interrupted; the next call begins the set-up again."; exit 130' INT
        is_reusable || make_venv
        install "$1"
        trap - INT
    fi
    exec 9<&-
}

is_ready() {
    [[ -x $venv/bin/normbench && -r $state ]] || return
    [[ $(<"$state") == "$(ingredients)"$'\n'"${1%]}"* ]] || return
    [[ -z ${PYTHON-} || $(version_of "$PYTHON") == "$(version_of "$venv/bin/python")" ]]
}

ingredients() {
    printf '%s\n' "$root" "$(version_of "$venv/bin/python")" "$(<"$root/constraints.txt")" "$(<"$root/pyproject.toml")"
}

version_of() { "$1" -ESc 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true; }

is_supported() { [[ $1 == 3.11.* || $1 == 3.12.* || $1 == 3.13.* ]]; }

wait_for_other_set_ups() {
    exec 9<"$root/constraints.txt"
    command -v flock >/dev/null || return 0
    flock -n 9 && return
    say "another set-up of $venv is under way; waiting for it."
    flock 9
}

# A set-up that was cut short may have left a package without half of its files, and a .venv that was moved has scripts
# that name its old place: both are made again.
is_reusable() {
    local version
    [[ -x $venv/bin/python && ! (-r $state && $(<"$state") == "$under_way") ]] || return
    version=$(version_of "$venv/bin/python")
    is_supported "$version" || return
    [[ -z ${PYTHON-} || $(version_of "$PYTHON") == "$version" ]] || return
    grep -qsF "$venv/bin/python" "$venv/bin/pip" && "$venv/bin/python" -I -m pip --version >/dev/null 2>&1
}

make_venv() {
    local python output
    python=$(find_python)
    "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments: install its venv module (Debian, Ubuntu:" \
            "apt install python$(version_of "$python" | cut -d. -f1,2)-venv) and start again."
    rm -rf "$venv"
    require_space "$root" 2000
    require_space "${TMPDIR:-/tmp}" 500
    output=$("$python" -I -m venv "$venv" 2>&1) || fail "$python could not make $venv: ${output##*$'\n'}"
}

# Prints the first Python in range.
find_python() {
    local candidate version found="" candidates=(python3 python3.11 python3.12 python3.13 python)
    [[ -z ${PYTHON-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        version=$(version_of "$candidate")
        if is_supported "$version"; then
            echo "$candidate"
            return
        fi
        found+=${version:+, $candidate is $version}
    done
    [[ -z $found ]] && found=", no ${candidates[*]} that works"
    fail "normbench needs Python 3.11, 3.12 or 3.13 and found ${found:2}: install one (Debian, Ubuntu: apt install" \
        "python3 python3-venv) or name one with PYTHON=/path/to/python."
}

# require_space DIRECTORY MB
require_space() {
    local free
    free=$(free_megabytes "$1")
    ((free >= $2)) ||
        fail "the set-up needs $2 MB on the disk that holds $1, which has $free MB free: make room and start again."
}

free_megabytes() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1000) }'; }

# pip's progress is shown as it comes; what it complains about is kept, and becomes a sentence if it fails.
install() {
    local complaints
    say "installing $1 (with torch, Hydra, datasets, TensorBoard and what they need) into $venv, at the versions in" \
        "constraints.txt."
    say "That is 0.5 GB to download and 2 GB on disk with torch's CPU build; with CUDA, which is what PyPI has for" \
        "Linux on x86-64, 3 GB and 6 GB."
    say "pip's own settings hold: PIP_EXTRA_INDEX_URL with PyTorch's CPU index (pytorch.org says where it is) gives the CPU build."
    echo "$under_way" >"$state"
    {
        complaints=$("$venv/bin/python" -I -m pip install --constraint "$root/constraints.txt" \
            --editable "$root${1#normbench}" 2>&1 >&3)
    } 3>&2 || explain_failure "$complaints"
    { ingredients && echo "$1"; } >"$state.new"
    mv "$state.new" "$state"
}

explain_failure() {
    local reason log=$venv/set-up.log
    if grep -qE 'No space left on device|Disk quota exceeded' <<<"$1"; then
        fail "the disk is full: make room where $venv, ${TMPDIR:-/tmp} and pip's cache are, and start again."
    fi
    printf '%s\n' "$1" >"$log"
    if grep -qE "$no_network" "$log"; then
        fail "pip could not reach its package index, or not all that it needs is there: check the network and pip's" \
            "settings, and start again (pip's errors are in $log)."
    fi
    reason=$(sed -nE 's/^(ERROR|error): //p' "$log" | tail -n 1)
    fail "pip could not install normbench: ${reason:-it gave no reason} (pip's errors are in $log)."
}
