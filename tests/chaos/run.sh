#!/usr/bin/env bash
# make chaos: run.sh SECONDS, and from the environment SEED, KILL_WORKERS (two workers every so many seconds), CONNECTOR (all
# together, or names with commas), RATE, ONLY and WITHOUT (steps of plan.py, names with commas), KEEP (a folder for logs).
cd "$(dirname "$0")/../.." || exit 1
exec build/venv/bin/python tests/chaos/chaos.py --seconds "$1" ${SEED:+--seed "$SEED"} ${KILL_WORKERS:+--kill-workers "$KILL_WORKERS"} \
	${CONNECTOR:+--connector "$CONNECTOR"} ${RATE:+--rate "$RATE"} ${ONLY:+--only "$ONLY"} ${WITHOUT:+--without "$WITHOUT"} --keep "${KEEP:-build/chaos}"
