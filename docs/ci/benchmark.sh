#!/bin/sh
# The steps of docs/ci/workflow.yaml, for any forge:
#
#   benchmark.sh preview   comment what a change of the stack file means
#   benchmark.sh run       run the stack; its results become the newest folder in RUNS
#   benchmark.sh compare   compare the newest run with the last good one, and comment the table
#
# The test cases are in RUNS/junit.xml and RUNS/compare.xml.
#
# STACK     name of the stack, which has at least three repetitions
# RUNS      folder of this stack that the forge keeps from night to night
# RUN_FLAGS further flags for the run, such as --local (default: none)
# FAIL_ON_SLO    1: a missed SLO, or one that is not judged, fails the run (default: it does not)
# PREVIEW_FLAGS  further flags for the preview, such as --objects --against FILE (default: none)
# COMMENT   command that posts the Markdown file whose name it gets (default: cat)
set -eu
page=$(mktemp)
trap 'rm -f "$page"' EXIT

preview() {
    # shellcheck disable=SC2086  # several flags
    aiperf-svc preview "$STACK" --markdown ${PREVIEW_FLAGS:-} > "$page"
    ${COMMENT:-cat} "$page"
}

run() {
    mkdir -p "$RUNS"
    # That of the night before: a run that fails is not compared.
    rm -f "$RUNS/compare.xml"
    code=0
    # shellcheck disable=SC2086  # several flags
    aiperf-svc run "$STACK" --artifact-dir "$RUNS" --junit "$RUNS/junit.xml" ${RUN_FLAGS:-} || code=$?
    # A missed SLO (4), or one that is not judged (9), is a measurement; the comparison says whether that is new.
    [ "${FAIL_ON_SLO:-}" != 1 ] || return "$code"
    [ "$code" -eq 4 ] || [ "$code" -eq 9 ] || return "$code"
}

compare() {
    newest=$(find "$RUNS" -mindepth 1 -maxdepth 1 -type d -name '*-*Z' | sort | tail -n 1)
    if [ ! -d "$RUNS/good" ]; then
        echo "the first run: $newest is the one to compare with"
    else
        code=0
        aiperf-svc compare "$RUNS/good/" "$newest" --markdown --fail-on worse --junit "$RUNS/compare.xml" \
            > "$page" || code=$?
        ${COMMENT:-cat} "$page"
        [ "$code" -eq 0 ] || return "$code"
    fi
    ln -sfn "$(basename "$newest")" "$RUNS/good"
}

case ${1:-} in
    preview | run | compare) "$1" ;;
    *) echo "error: step '${1:-}'; expected preview, run or compare" >&2; exit 2 ;;
esac
