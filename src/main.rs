//! The `etcd-guard` program. [`etcd_guard::cli`] implements the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard::cli::main()
}
