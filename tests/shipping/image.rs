//! The Dockerfiles, as far as they can be told without a container tool.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{kustomize, objects, path_of, support::child::mortal};

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

/// Files of a folder, at any depth.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    entries.flat_map(|it| if it.is_dir() { files_of(&it) } else { vec![it] }).collect()
}

#[test]
fn the_image_is_built_from_all_files_that_the_program_carries() {
    let dockerfile = read("deploy/Dockerfile");
    let copied: Vec<_> = dockerfile.lines().filter_map(|it| it.strip_prefix("COPY ")).collect();
    let copied: Vec<_> = copied.iter().map(|it| path_of(it.split(' ').next().unwrap())).collect();
    let source = path_of("src");
    // What fuzzers and tests read is not built there.
    let is_built = |file: &Path| {
        let mut parts = file.strip_prefix(&source).unwrap().iter();
        parts.all(|it| it != "tests" && it != "fuzzing.rs")
    };
    let mut carried = Vec::new();
    for file in files_of(&source).into_iter().filter(|it| is_built(it)) {
        let text = fs::read_to_string(&file).unwrap();
        let named = text.split("include_str!(\"").skip(1).map(|it| it.split('"').next().unwrap());
        carried.extend(named.map(|it| file.parent().unwrap().join(it).canonicalize().unwrap()));
    }
    assert!(carried.len() > 3, "{carried:?}");
    for file in carried {
        assert!(copied.iter().any(|it| file.starts_with(it)), "{} is not in: {copied:?}", file.display());
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
        let version = tag.split_once(':').map_or("", |(_, it)| it);
        assert!(!version.is_empty(), "{file}: {tag} names no version");
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

/// As whom the Deployment runs it, and by a path that the image has; kubelet and docker alike.
#[test]
fn the_image_starts_the_program_that_it_holds_and_not_as_root() {
    let dockerfile = read("deploy/Dockerfile");
    let of = |word: &str| {
        let mut lines = dockerfile.lines().filter_map(|it| it.strip_prefix(word));
        lines.next().unwrap_or_else(|| panic!("no {word}")).trim().to_owned()
    };
    let pod = objects(&kustomize("deploy/base")).into_iter().find(|it| it["kind"] == "Deployment").unwrap();
    let context = &pod["spec"]["template"]["spec"]["securityContext"];
    assert_eq!(of("USER"), format!("{}:{}", context["runAsUser"], context["runAsGroup"]));
    let entrypoint: Vec<String> = serde_json::from_str(&of("ENTRYPOINT")).unwrap();
    assert_eq!(of("COPY --from=build"), "/image/ /");
    assert!(
        dockerfile.contains(&format!("/release/etcd-guard\" /image{} ", entrypoint[0])),
        "{entrypoint:?}"
    );
}

#[test]
fn everything_that_is_shipped_is_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, field) in [
        ("deploy/Dockerfile", "ARG VERSION="),
        ("deploy/lxcfs/Dockerfile", "ARG VERSION="),
        ("deploy/chart/etcd-guard/Chart.yaml", "version: "),
        ("deploy/chart/etcd-guard/Chart.yaml", "appVersion: "),
        ("deploy/base/kustomization.yaml", "  newTag: "),
        ("deploy/lxcfs/kustomization.yaml", "  newTag: "),
    ] {
        let text = read(file);
        let named: Vec<_> = text.lines().filter_map(|it| it.strip_prefix(field)).collect();
        assert!(!named.is_empty() && named.iter().all(|it| *it == version), "{file}: {field}{named:?}");
    }
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
