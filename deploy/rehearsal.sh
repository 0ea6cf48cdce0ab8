# Shared by the rehearsals that end at the first thing that does not hold; sourced after deploy/processes.sh, with $state set.
# shellcheck shell=bash disable=SC2154 # what the script sets

# holds WORDS COMMAND…: one line of the result; the first that does not hold ends it.
holds() {
    if ! "${@:2}" > "$state/holds.out" 2>&1; then
        cat "$state/holds.out"
        die "FAIL  $1"
    fi
    say "ok    $1"
}
is() { [[ $1 == "$2" ]] || { echo "is $1, must be $2" && return 1; }; }
same() { diff "$1" "$2" | head -n 20 && [[ ${PIPESTATUS[0]} == 0 ]]; }
# soon COMMAND…: true as soon as it is, within five minutes: the machine may be busy with a build and tests as well.
soon() {
    local deadline=$((SECONDS + 300))
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.5
    done
}
