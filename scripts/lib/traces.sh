# shellcheck shell=bash
# Comparison of recorded runs with the model of the reservation protocol.

# The test that compares the runs in $PROTOCOL_TRACES.
COMPARISON=traces_of_environment_are_runs_of_the_model

# make_trace_folder: makes a folder, to which tests write the traces of their runs. The caller removes $TRACE_FOLDER.
make_trace_folder() {
  TRACE_FOLDER=$(mktemp -d)
  export PROTOCOL_TRACES=$TRACE_FOLDER
}

# compare_traces: compares the runs in $PROTOCOL_TRACES with the model. Fails if no test with this name exists. Needs lib/xtask.sh.
compare_traces() {
  local output status=0
  output=$(cargo test --quiet --locked "${TESTED[@]}" --lib -- --ignored --nocapture "$COMPARISON") || status=1
  sed '/^running \|^test \|^\.*$/d' <<<"$output"
  [[ $status -eq 0 && $output == *' 1 passed'* ]]
}
