//! Progress messages on stderr, beside the report on stdout.

use std::io::Write;

use etcd_guard_core::escape::to_single_line;

/// Writes a line to stderr. An error is ignored: the run continues without a terminal.
pub(super) fn report_progress(text: &str) {
    let _ = writeln!(anstream::stderr(), "{}", to_single_line(text));
}
