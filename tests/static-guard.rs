//! The guard without shared libraries, as its image holds it, built of what the tests are built of.

use std::process::ExitCode;

fn main() -> ExitCode {
    etcd_guard::cli::main()
}
