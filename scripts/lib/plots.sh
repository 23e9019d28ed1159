# shellcheck shell=bash
# Figures of benches and of the simulation. PLOTS names the folder of the figures; without it, nothing is drawn.

# make_plot_folder: makes a folder, to which benches and tests write their values, if PLOTS is set. The caller removes $PLOT_FOLDER.
make_plot_folder() {
  [[ -n ${PLOTS-} ]] || return 0
  PLOT_FOLDER=$(mktemp -d)
  export PLOT_DATA=$PLOT_FOLDER
}

# draw_plots: draws the figures of all values in $PLOT_DATA, if PLOTS is set.
draw_plots() {
  # Not every part has a figure.
  [[ -n ${PLOTS-} && -n $(find "$PLOT_FOLDER" -name '*.json' -print -quit) ]] || return 0
  require_rust
  cargo run --quiet --locked --manifest-path "$PROJECT/Cargo.toml" --package etcd-guard-plots -- "$PLOT_FOLDER" "$PLOTS" >&2
}
