//! The program `kubectl-etcd_guard`.

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard_plugin::cli::main()
}
