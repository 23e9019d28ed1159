//! The Dockerfiles, as far as they can be told without a container tool.

use std::fs;

use crate::{path_of, support::child::mortal};

fn read(file: &str) -> String {
    fs::read_to_string(path_of(file)).unwrap()
}

#[test]
fn the_image_is_built_with_what_the_tests_are_built_with() {
    let dockerfile = read("deploy/Dockerfile");
    let install = dockerfile.split("apt-get install").nth(1).unwrap().lines().next().unwrap();
    let programs = read("scripts/testbed.d/programs.sh");
    let protoc = programs.lines().find_map(|it| it.trim().strip_prefix("protoc) DEB='")).unwrap();
    for package in protoc.split('\'').next().unwrap().split(' ') {
        assert!(install.split(' ').any(|it| it == package), "{package} is not in: {install}");
    }
}

#[test]
fn the_image_is_built_from_all_files_that_cargo_wants_to_see() {
    let dockerfile = read("deploy/Dockerfile");
    let copied: Vec<_> = dockerfile.lines().filter_map(|it| it.strip_prefix("COPY ")).collect();
    let manifest = read("Cargo.toml");
    let targets: Vec<_> = manifest.lines().filter_map(|it| it.strip_prefix("path = \"")).collect();
    assert!(targets.len() > 5, "{targets:?}");
    for target in targets {
        let folder = target.split('/').next().unwrap();
        assert!(copied.contains(&format!("{folder} {folder}").as_str()), "{target} is not in: {copied:?}");
    }
}

/// The bases of a Dockerfile, as it names them.
fn bases(file: &str) -> Vec<String> {
    let dockerfile = read(file);
    let named = dockerfile.lines().filter_map(|it| it.strip_prefix("FROM "));
    named.map(|it| it.split(' ').next().unwrap().to_owned()).filter(|it| it != "scratch").collect()
}

#[test]
fn every_base_is_pinned_by_digest() {
    for file in ["deploy/Dockerfile", "deploy/lxcfs/Dockerfile"] {
        let bases = bases(file);
        assert_eq!(bases.len(), 1, "{file}: {bases:?}");
        let (tag, digest) = bases[0].split_once("@sha256:").unwrap_or_else(|| panic!("{file}: {bases:?}"));
        assert!(tag.contains(':'), "{file}: {tag} names no version");
        assert!(digest.len() == 64 && digest.chars().all(|it| it.is_ascii_hexdigit()), "{file}: {digest}");
    }
}

#[test]
fn the_image_is_built_with_a_compiler_that_knows_enough() {
    let number = |text: &str| -> Vec<u32> { text.split('.').map(|it| it.parse().unwrap()).collect() };
    let base = bases("deploy/Dockerfile").remove(0);
    let compiler = base.strip_prefix("rust:").unwrap().split('-').next().unwrap();
    assert!(number(compiler) >= number(env!("CARGO_PKG_RUST_VERSION")), "{compiler}");
}

/// What `guard_fits` of the scripts says of an image of so many bytes.
fn said_of_an_image_of(bytes: u64) -> (bool, String) {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(bytes).unwrap();
    let script = r#"set -eu; PROJECT=$1 ARCHIVE=$2 SPEAKER=test
        source "$PROJECT/scripts/testbed.d/say.sh"; source "$PROJECT/scripts/demo.d/build.sh"; guard_fits"#;
    let mut bash = mortal("bash");
    let output = bash.args(["-c", script, "bash"]).arg(path_of("")).arg(image.path()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_image_of_more_than_fifteen_megabytes_is_refused() {
    assert_eq!(said_of_an_image_of(15_000_000), (true, String::new()));
    let (fits, said) = said_of_an_image_of(15_000_001);
    assert!(!fits && said.contains("the image has 15000001 bytes, and may have 15000000"), "{said}");
}
