# Shared by the scripts that run the program on real servers; sourced, with $state (their folder for logs), $makegood
# (the program) and $script (their name) set.
# shellcheck shell=bash disable=SC2154 # what the script sets

# The settings of the caller's shell are for other deployments.
# shellcheck disable=SC2086 # the names, one word each
unset ${!MAKEGOOD_@}

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "$script" "$*" >&2
    exit 1
}

declare -A process # name -> id
inside=() # what enters the namespaces in which `start` shall run
servers_are_ours=false
server_is_sized=false # PostgreSQL runs with other settings than its own

# start NAME [VARIABLE=VALUE...] COMMAND: runs makegood with a log of its own.
# In a session of its own, so that Ctrl-C reaches it through us and in order; and told to end by the kernel should
# this script be killed without a chance to clean up.
start() {
    local name=$1
    shift
    local variables=()
    while [[ $1 == *=* ]]; do
        variables+=("$1")
        shift
    done
    env "${variables[@]}" setsid "${inside[@]}" setpriv --pdeathsig TERM -- "$makegood" "$@" \
        < /dev/null >> "$state/$name.log" 2>&1 {lock}>&- &
    process[$name]=$!
}

# start_receiver PORT: the backend's receiver of webhooks, whose secrets stand in $state/receiver.secret. The endpoint's file
# is $state/endpoint.secret, so that each side may change at its own time.
start_receiver() {
    [[ -s $state/endpoint.secret ]] || (umask 077 && echo "whsec_$(openssl rand -base64 32)" > "$state/endpoint.secret")
    [[ -s $state/receiver.secret ]] || cp "$state/endpoint.secret" "$state/receiver.secret"
    env RECEIVER_SECRETS="$state/receiver.secret" RECEIVER_DATABASE="$state/receiver.sqlite" RECEIVER_PORT="$1" \
        setsid "${inside[@]}" setpriv --pdeathsig TERM -- python3 deploy/receivers/python/receiver.py \
        < /dev/null >> "$state/receiver.log" 2>&1 {lock}>&- &
    process[receiver]=$!
}
# received QUERY: what the receiver's database answers, a row a line.
received() {
    python3 -c 'import sqlite3, sys
for row in sqlite3.connect(sys.argv[1], timeout=10).execute(sys.argv[2]):
    print(*row)' "$state/receiver.sqlite" "$1"
}

# The job is waited for, or bash would announce its death in the middle of our output.
crash() {
    kill -s KILL "${process[$1]}"
    wait "${process[$1]}" 2> /dev/null || true
    unset "process[$1]"
}

show_logs() {
    local log
    for log in "$state"/*.log; do
        [[ -s $log ]] || continue
        printf -- '--- the end of %s\n' "$log"
        tail -n "$1" "$log"
    done >&2
}

# alive NAME: ends the script where that process has ended.
alive() {
    kill -0 "${process[$1]}" 2> /dev/null || {
        show_logs 20
        die "$1 ended"
    }
}

# wait_ready NAME URL
wait_ready() {
    local deadline=$((SECONDS + ready_seconds))
    until curl -fs -m 2 -o /dev/null "$2"; do
        alive "$1"
        ((SECONDS < deadline)) || {
            show_logs 20
            die "$1 was not ready after $ready_seconds s: $2"
        }
        sleep 0.1
    done
}

# shellcheck disable=SC2317 # called by the trap
cleanup() {
    local status=$? running deadline
    trap '' HUP INT TERM
    set +e
    # From bash's own list of children that still run: an id in it cannot have gone to anybody else.
    mapfile -t running < <(jobs -pr)
    if ((${#running[@]})); then
        say "stopping"
        kill "${running[@]}" 2> /dev/null
        deadline=$((SECONDS + 30))
        while [[ $(jobs -pr) ]] && ((SECONDS < deadline)); do sleep 0.1; done
        mapfile -t running < <(jobs -pr)
        ((${#running[@]} == 0)) || kill -s KILL "${running[@]}" 2> /dev/null
        wait 2> /dev/null
    fi
    if $servers_are_ours; then
        deploy/local down
    elif $server_is_sized; then
        deploy/local restart postgres
    fi
    exit "$status"
}
