//! The `etcd-guard` program: parses the command line and hands over to [`etcd_guard::cli`].

use std::process::ExitCode;

/// A review is thousands of small allocations, which glibc takes twice as long for: decision 0024.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    etcd_guard::cli::main()
}
