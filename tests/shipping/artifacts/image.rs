//! The Dockerfiles, as far as they can be checked without a container tool.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{kustomize, objects, project_path};
use test_support::processes::child::scoped_command;

fn read(file: &str) -> String {
    fs::read_to_string(project_path(file)).unwrap()
}

#[test]
fn image_and_tests_use_same_build_settings() {
    let dockerfile = read("deploy/Dockerfile");
    let install = dockerfile.split("apt-get install").nth(1).unwrap().lines().next().unwrap();
    let programs = read("xtask/src/programs/catalog.rs");
    let protoc =
        programs.lines().find_map(|line| line.trim().strip_prefix("\"protoc\" => (\"protoc\", ")).unwrap();
    let packages: Vec<&str> = protoc.split('"').skip(1).step_by(2).collect();
    assert_eq!(packages.len(), 2, "{protoc}");
    for package in packages {
        assert!(install.split(' ').any(|word| word == package), "{package} is not in: {install}");
    }
}

#[test]
fn image_build_copies_every_cargo_target() {
    let dockerfile = read("deploy/Dockerfile");
    let copied: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).collect();
    let manifest = read("Cargo.toml");
    let (_, members) = manifest.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.contains(&"tests/support"), "{members:?}");
    // Cargo requires the sources of each `[[bench]]` and the manifest of each member.
    for folder in members.into_iter().chain(["benches", "src", "tests"]) {
        let top = folder.split('/').next().unwrap();
        assert!(copied.contains(&format!("{top} {top}").as_str()), "{folder} is not in: {copied:?}");
    }
}

/// Returns all files of a folder and its subfolders.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

/// The modules for fuzzing and tests, one of which writes the manual's page of commands. They are not part of the image's build.
const NOT_BUILT: [&str; 4] = ["tests", "tests.rs", "fuzzing.rs", "reference.rs"];

#[test]
fn image_build_copies_every_embedded_file() {
    let dockerfile = read("deploy/Dockerfile");
    let copied: Vec<_> = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).collect();
    let copied: Vec<_> = copied.iter().map(|line| project_path(line.split(' ').next().unwrap())).collect();
    let source = project_path("src");
    let is_built = |file: &Path| {
        let mut parts = file.strip_prefix(&source).unwrap().iter();
        parts.all(|part| NOT_BUILT.iter().all(|other| part != *other))
    };
    let mut embedded = Vec::new();
    for file in files_of(&source).into_iter().filter(|file| is_built(file)) {
        let text = fs::read_to_string(&file).unwrap();
        let named = text.split("\"/../../").skip(1).map(|rest| rest.split('"').next().unwrap());
        embedded.extend(named.map(|name| project_path(name).canonicalize().unwrap()));
    }
    assert!(embedded.len() > 3, "{embedded:?}");
    for file in embedded {
        assert!(
            copied.iter().any(|folder| file.starts_with(folder)),
            "{} is not in: {copied:?}",
            file.display()
        );
    }
}

/// Returns the base images of a Dockerfile.
fn bases(file: &str) -> Vec<String> {
    let dockerfile = read(file);
    let named = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM "));
    named.map(|line| line.split(' ').next().unwrap().to_owned()).filter(|base| base != "scratch").collect()
}

#[test]
fn every_base_is_pinned_by_digest() {
    for file in ["deploy/Dockerfile", "deploy/lxcfs/Dockerfile"] {
        let bases = bases(file);
        assert_eq!(bases.len(), 1, "{file}: {bases:?}");
        let (tag, digest) = bases[0].split_once("@sha256:").unwrap_or_else(|| panic!("{file}: {bases:?}"));
        let version = tag.split_once(':').map_or("", |(_, version)| version);
        assert!(!version.is_empty(), "{file}: {tag} names no version");
        assert!(
            digest.len() == 64 && digest.chars().all(|character| character.is_ascii_hexdigit()),
            "{file}: {digest}"
        );
    }
}

/// The flags of a build of this project in this folder, as the compiler gets them.
fn release_flags(project: &Path) -> Vec<String> {
    let script = r#"set -eu; . "$1/scripts/lib/release-flags.sh"; release_flags "$2" "$2/target" -C lto"#;
    let mut shell = scoped_command("sh");
    let output = shell.args(["-c", script, "sh"]).arg(project_path("")).arg(project).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split('\u{1f}').map(str::to_owned).collect()
}

/// A sample of `scripts/reproduce`, which builds the release program twice.
#[test]
fn programs_of_two_folders_are_equal() {
    let base = tempfile::tempdir().unwrap();
    let programs = ["first", "second/with blanks"].map(|folder| {
        let project = base.path().join(folder);
        fs::create_dir_all(project.join("src")).unwrap();
        let source = project.join("src/main.rs");
        // A panic and a type name contain the path of the file.
        fs::write(&source, "fn main() { println!(\"{}\", file!()); let _: u8 = \"x\".parse().unwrap(); }")
            .unwrap();
        let program = project.join("program");
        let mut rustc = scoped_command("rustc");
        rustc.args(release_flags(&project)).arg("-Copt-level=0").arg("-Clto=off").arg("-Cstrip=symbols");
        rustc.args(["--crate-name", "main"]).arg(&source).arg("-o").arg(&program);
        let output = rustc.current_dir(&project).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(program).unwrap()
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(text(&programs[0]).contains("/etcd-guard/src/main.rs"));
    assert!(!text(&programs[0]).contains(base.path().to_str().unwrap()));
    assert!(programs[0] == programs[1], "the programs differ");
}

/// The scripts, the image and the workflow build the release in the same way.
#[test]
fn release_builds_use_the_same_flags_and_list_their_dependencies() {
    let [dockerfile, script, workflow] =
        ["deploy/Dockerfile", "scripts/lib/demo/build.sh", ".github/workflows/build.yml"].map(read);
    let version = script.lines().find_map(|line| line.strip_prefix("CARGO_AUDITABLE_VERSION=")).unwrap();
    for text in [&dockerfile, &script, &workflow] {
        assert!(text.contains("release-flags.sh") && text.contains("$(release_flags "), "{text}");
        assert!(text.contains("SOURCE_DATE_EPOCH"), "{text}");
    }
    for text in [&dockerfile, &workflow] {
        assert!(text.contains(&format!("--version {version} cargo-auditable")), "{text}");
        assert!(text.contains("cargo auditable build --locked --release"), "{text}");
    }
    assert!(dockerfile.contains("licences --target"), "{dockerfile}");
    assert!(script.contains(r#"cargo-auditable "$CARGO_AUDITABLE_VERSION")" auditable"#), "{script}");
}

/// The image has the user of the Deployment, and its entrypoint is a path in the image.
#[test]
fn image_runs_its_program_without_root() {
    let dockerfile = read("deploy/Dockerfile");
    let instruction = |word: &str| {
        let mut lines = dockerfile.lines().filter_map(|line| line.strip_prefix(word));
        lines.next().unwrap_or_else(|| panic!("no {word}")).trim().to_owned()
    };
    let pod =
        objects(&kustomize("deploy/base")).into_iter().find(|object| object["kind"] == "Deployment").unwrap();
    let context = &pod["spec"]["template"]["spec"]["securityContext"];
    assert_eq!(instruction("USER"), format!("{}:{}", context["runAsUser"], context["runAsGroup"]));
    let entrypoint: Vec<String> = serde_json::from_str(&instruction("ENTRYPOINT")).unwrap();
    assert_eq!(instruction("COPY --from=build"), "/image/ /");
    assert!(
        dockerfile.contains(&format!("/release/etcd-guard\" /image{} ", entrypoint[0])),
        "{entrypoint:?}"
    );
}

#[test]
fn all_artifacts_have_current_version() {
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
        let named: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(field)).collect();
        assert!(!named.is_empty() && named.iter().all(|value| *value == version), "{file}: {field}{named:?}");
    }
}

/// Result and stderr of `check_image_size` for an image of this size.
fn check_image_size(bytes: u64) -> (bool, String) {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(bytes).unwrap();
    let script = r#"set -eu; LIB=$1/scripts/lib
        source "$LIB/log.sh"; source "$LIB/demo/build.sh"; check_image_size "$2""#;
    let mut bash = scoped_command("bash");
    let output = bash.args(["-c", script, "bash"]).arg(project_path("")).arg(image.path()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn rejects_images_over_25_megabytes() {
    assert_eq!(check_image_size(25_000_000), (true, String::new()));
    let (fits, output) = check_image_size(25_000_001);
    assert!(!fits && output.contains("the image has 25000001 bytes, the limit is 25000000"), "{output}");
}
