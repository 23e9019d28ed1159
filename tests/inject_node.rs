//! The mutating path on a whole real node: lxcfs read from inside a container, the real kubelet's own status. Needs root.
//!
//! One story is played, `tests/inject_node/story.sh`; each test holds one promise against what was seen.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::HashMap, path::Path, process::Command, sync::LazyLock};

const TESTBED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/testbed");
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inject_node/story.sh");

const GUARD: &str = env!("CARGO_BIN_EXE_etcd-guard");

/// Where deploy/Dockerfile puts it.
const GUARD_IN_IMAGE: &str = "/usr/local/bin/etcd-guard";

/// A box with a shell's programs and the `free` of procps, which reads /proc; busybox's asks the kernel.
const PROGRAMS: [&str; 2] = ["/bin/busybox", "/usr/bin/free"];

/// What the one story tells. If it cannot be played it is not tried again: the first test to look says why.
static SEEN: LazyLock<HashMap<String, String>> = LazyLock::new(play);

#[track_caller]
fn seen(name: &str) -> &'static str {
    let seen = &*SEEN;
    seen.get(name).unwrap_or_else(|| panic!("the story does not tell {name}: {seen:#?}"))
}

fn play() -> HashMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let images = [image(), guard_image(folder.path()), lxcfs_image()];
    let status = Command::new(TESTBED)
        .args(["node", "--lxcfs", "--node-status-update-frequency", "2s"])
        .args(images.iter().flat_map(|it| ["--image", it]))
        .args(["--", STORY, GUARD])
        .arg(&report)
        .status()
        .unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the story ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

/// The archive of the image of the story's pods.
fn image() -> String {
    archive("inject-node-box:1", &with_libraries(&PROGRAMS), &["/bin/busybox"])
}

/// The guard as it was built for this test, with what it is linked with.
fn guard_image(folder: &Path) -> String {
    let small = folder.join("etcd-guard");
    let status = Command::new("strip").arg("-o").arg(&small).arg(GUARD).status().unwrap();
    assert!(status.success(), "strip: {status}");
    let mut files = with_libraries(&[GUARD]);
    files.retain(|it| !it.starts_with(GUARD));
    files.push(format!("{}={GUARD_IN_IMAGE}", small.display()));
    archive("etcd-guard:0.1.0", &files, &[GUARD_IN_IMAGE])
}

/// What deploy/lxcfs/Dockerfile makes, of this machine's lxcfs and with busybox for a shell.
fn lxcfs_image() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/lxcfs/serve");
    let mut files = with_libraries(&["/usr/bin/lxcfs"]);
    files.push(format!("{script}=/usr/local/bin/serve-lxcfs"));
    files.extend(liblxcfs());
    files.extend(["sh", "cat", "head", "mkdir", "umount"].map(|it| format!("/bin/busybox=/bin/{it}")));
    archive("etcd-guard-lxcfs:0.1.0", &files, &["/bin/sh", "/usr/local/bin/serve-lxcfs"])
}

/// The part of lxcfs that it loads by itself.
fn liblxcfs() -> Option<String> {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths = folders.map(|it| it.unwrap().path().join("lxcfs/liblxcfs.so"));
    paths.find(|it| it.exists()).map(|it| format!("{0}={0}", it.display()))
}

/// The path of an archive of these files.
fn archive(name: &str, files: &[String], entrypoint: &[&str]) -> String {
    let mut command = Command::new(TESTBED);
    command.args(["image", name]).args(files.iter().flat_map(|it| ["--file", it]));
    let output = command.arg("--entrypoint").args(entrypoint).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Programs and their libraries, each at the place where it is.
fn with_libraries(programs: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    for program in programs {
        let installed = "apt-get install busybox-static procps lxcfs";
        assert!(Path::new(program).exists(), "{program} is missing: {installed}");
        files.extend(libraries(program).into_iter().chain([(*program).to_owned()]));
    }
    files.into_iter().map(|file| format!("{file}={file}")).collect()
}

/// What a program is linked with; nothing if it is static.
fn libraries(program: &str) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(str::to_owned)
        .collect()
}

fn millis(cpu: &str) -> u64 {
    cpu.strip_suffix('m').map_or_else(|| cpu.parse::<u64>().unwrap() * 1000, |it| it.parse().unwrap())
}

#[test]
fn a_container_sees_its_own_memory_processors_and_uptime() {
    let words: Vec<&str> = seen("limited-meminfo").split_whitespace().collect();
    assert_eq!(words, ["MemTotal:", "262144", "kB"]);
    assert_eq!(seen("limited-processors"), "1");
    let seconds = |name| seen(name).split('.').next().unwrap().parse::<u64>().unwrap();
    assert!(seconds("limited-uptime") < 120 && seconds("limited-uptime") < seconds("node-uptime"));
}

#[test]
fn free_of_procps_agrees() {
    let total = seen("limited-free").split("Mem:").nth(1).unwrap().split_whitespace().next().unwrap();
    assert_eq!(total, "262144");
}

#[test]
fn a_pod_in_a_restricted_namespace_starts_unmutated() {
    assert!(seen("strict-said").contains("Warning: lxcfs was not injected"), "{}", seen("strict-said"));
    assert_eq!(seen("strict-meminfo"), seen("node-meminfo"), "the node's");
}

#[test]
fn without_lxcfs_a_pod_waits_and_starts_by_itself_when_lxcfs_is_there() {
    assert!(seen("missing-event").starts_with("FailedMount: "), "{}", seen("missing-event"));
    assert_eq!(seen("missing-phase"), "Pending");
    assert!(seen("missing-meminfo").contains("262144"), "{}", seen("missing-meminfo"));
    assert!(seen("injected").parse::<u64>().unwrap() >= 3);
}

#[test]
fn a_daemonset_serves_lxcfs_and_labels_its_node() {
    assert_eq!(seen("unserved-label"), "");
    assert!(seen("daemonset-meminfo").contains("262144"), "{}", seen("daemonset-meminfo"));
    assert!(
        seen("daemonset-affinity").contains("etcd-guard.io/lxcfs-ready"),
        "{}",
        seen("daemonset-affinity")
    );
}

#[test]
fn lxcfs_that_was_killed_comes_back_over_its_dead_mount() {
    assert!(seen("killed-meminfo").contains("262144"), "{}", seen("killed-meminfo"));
}

#[test]
fn a_daemonset_that_goes_takes_its_mount_and_its_label_along() {
    assert_eq!(seen("removed-mounts"), "0");
    assert_eq!(seen("removed-label"), "");
}

#[test]
fn the_value_does_not_move_over_ten_updates_of_the_kubelet_and_three_other_writers() {
    assert_eq!(millis(seen("out-allocatable")), 2 * millis(seen("raw-allocatable")));
    assert_eq!(seen("seen-allocatable"), seen("out-allocatable"));
    assert_eq!(seen("other-writers"), "3");
    assert_eq!(seen("writers-answers"), [seen("out-allocatable"); 3].join(" "));
    assert_eq!(seen("kubelet-updates"), "10", "as the node's heartbeats tell");
    assert!(seen("node-updates").parse::<u64>().unwrap() >= 13, "{}", seen("node-updates"));
}

#[test]
fn a_record_that_is_removed_doubles_nothing_and_comes_back_with_the_kubelets_next_update() {
    assert!(millis(seen("unrecorded-allocatable")) <= millis(seen("out-allocatable")));
    assert_eq!(seen("again-allocatable"), seen("out-allocatable"));
}

#[test]
fn a_pod_that_requests_more_cpu_than_the_machine_has_is_scheduled_and_starts() {
    assert_eq!(seen("large-pod"), "started");
}

#[test]
fn switched_off_the_node_gets_its_own_back() {
    assert_eq!(seen("restored-allocatable"), seen("raw-allocatable"));
    assert_eq!(seen("end"), "reached");
}
