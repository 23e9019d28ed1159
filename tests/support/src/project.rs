//! Paths in the source tree and the build directory.

use std::path::{Path, PathBuf};

/// The root of the project, relative to this package.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the path of a file or folder, given relative to the root of the project.
pub fn path(relative: &str) -> PathBuf {
    // `..` is resolved, so that paths in messages are readable.
    let root = Path::new(ROOT).canonicalize().expect("the root of the project exists");
    if relative.is_empty() { root } else { root.join(relative) }
}

/// Returns the path of the server's program, which Cargo built for the running test or bench.
///
/// Cargo builds the programs of a package before the tests of this package. The tests of another package need a build of their own.
pub fn guard_program() -> PathBuf {
    built_program("etcd-guard")
}

/// Returns the path of the program for people, the kubectl plugin.
pub fn plugin_program() -> PathBuf {
    built_program("kubectl-etcd_guard")
}

/// Returns the path of a program of the workspace. Tests and benches run from `target/PROFILE/deps`, and Cargo builds programs into
/// `target/PROFILE`.
fn program_path(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let folder = test.parent().and_then(Path::parent).expect("a folder above the folder of the running test");
    folder.join(name)
}

fn built_program(name: &str) -> PathBuf {
    let program = program_path(name);
    assert!(
        program.is_file(),
        "{} does not exist. Build it in the profile of the test: cargo build --workspace --bins",
        program.display()
    );
    program
}
