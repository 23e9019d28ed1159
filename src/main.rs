//! The `etcd-guard` program: parses the command line and hands over to [`etcd_guard::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard::cli::main()
}
