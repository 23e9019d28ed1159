//! The guard without shared libraries, as in its image, built from the same dependencies as the tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard_server::cli::main()
}
