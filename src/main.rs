//! The `etcd-guard` program: parses the command line and hands over to [`etcd_guard::cli`].

use std::process::ExitCode;

/// Reviews are made of small allocations: with glibc's allocator a third of what a mutation executes (decision 0024).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    etcd_guard::cli::main()
}
