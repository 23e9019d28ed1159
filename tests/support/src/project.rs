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

/// Returns the path of the program that Cargo built together with the running test or bench.
///
/// Tests and benches run from `target/PROFILE/deps`; Cargo builds the programs of their package into `target/PROFILE`.
/// `CARGO_BIN_EXE_etcd-guard` has the same path, but only while a test of that package is compiled.
pub fn guard_program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let folder = test.parent().and_then(Path::parent).expect("a folder above the folder of the running test");
    let program = folder.join("etcd-guard");
    assert!(
        program.is_file(),
        "{} does not exist: run the test with cargo, which builds it",
        program.display()
    );
    program
}
