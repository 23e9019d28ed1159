//! The program `etcd-guard`: the server.

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard_server::cli::main()
}
