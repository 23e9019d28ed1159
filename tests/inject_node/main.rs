//! Mutation on a real node: lxcfs inside containers, and over-commit with a real kubelet. Requires root.
//!
//! The script `tests/inject_node/story.sh` runs once and writes a report; each test asserts one part of the report.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, path::Path, process::Command, sync::LazyLock};

const TESTBED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/testbed");
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inject_node/story.sh");

const GUARD: &str = env!("CARGO_BIN_EXE_etcd-guard");

/// Path of the program in the image that deploy/Dockerfile builds.
const GUARD_IN_IMAGE: &str = "/usr/local/bin/etcd-guard";

/// Programs of the pods' image: busybox, and `free` of procps, which reads /proc (`free` of busybox calls sysinfo).
const PROGRAMS: [&str; 2] = ["/bin/busybox", "/usr/bin/free"];

/// The report of the script. If the script fails, the first test that reads the report prints the cause.
static REPORT: LazyLock<BTreeMap<String, String>> = LazyLock::new(run_script);

#[track_caller]
fn reported(name: &str) -> &'static str {
    let report = &*REPORT;
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

fn run_script() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let images = [box_image(), guard_image(folder.path()), lxcfs_image()];
    let status = Command::new(TESTBED)
        .args(["node", "--lxcfs", "--node-status-update-frequency", "2s"])
        .args(images.iter().flat_map(|image| ["--image", image]))
        .args(["--", STORY, GUARD])
        .arg(&report)
        .status()
        .unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the script ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

/// Returns the archive of the pods' image.
fn box_image() -> String {
    archive("inject-node-box:1", &with_libraries(&PROGRAMS), &["/bin/busybox"])
}

/// Returns the archive of the guard's image: the program of this build, with its shared libraries.
fn guard_image(folder: &Path) -> String {
    let small = folder.join("etcd-guard");
    let status = Command::new("strip").arg("-o").arg(&small).arg(GUARD).status().unwrap();
    assert!(status.success(), "strip: {status}");
    let mut files = with_libraries(&[GUARD]);
    files.retain(|file| !file.starts_with(GUARD));
    files.push(format!("{}={GUARD_IN_IMAGE}", small.display()));
    archive("etcd-guard:0.1.0", &files, &[GUARD_IN_IMAGE])
}

/// Returns the archive of an image like that of deploy/lxcfs/Dockerfile, with the lxcfs of this machine and busybox.
fn lxcfs_image() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/lxcfs/serve");
    let mut files = with_libraries(&["/usr/bin/lxcfs"]);
    files.push(format!("{script}=/usr/local/bin/serve-lxcfs"));
    files.extend(liblxcfs());
    files.extend(["sh", "cat", "head", "mkdir", "umount"].map(|name| format!("/bin/busybox=/bin/{name}")));
    archive("etcd-guard-lxcfs:0.1.0", &files, &["/bin/sh", "/usr/local/bin/serve-lxcfs"])
}

/// Returns the library that lxcfs loads at run time.
fn liblxcfs() -> Option<String> {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths = folders.map(|folder| folder.unwrap().path().join("lxcfs/liblxcfs.so"));
    paths.find(|path| path.exists()).map(|path| format!("{0}={0}", path.display()))
}

/// Builds an image with these files and returns the path of its archive.
fn archive(name: &str, files: &[String], entrypoint: &[&str]) -> String {
    let mut command = Command::new(TESTBED);
    command.args(["image", name]).args(files.iter().flat_map(|file| ["--file", file]));
    let output = command.arg("--entrypoint").args(entrypoint).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns programs and their libraries, at their own paths.
fn with_libraries(programs: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    for program in programs {
        let installed = "apt-get install busybox-static procps lxcfs";
        assert!(Path::new(program).exists(), "{program} is missing: {installed}");
        files.extend(libraries(program).into_iter().chain([(*program).to_owned()]));
    }
    files.into_iter().map(|file| format!("{file}={file}")).collect()
}

/// Returns the shared libraries of a program; empty for a static one.
fn libraries(program: &str) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(str::to_owned)
        .collect()
}

/// The longest time until a label or a start of the guard takes effect, on a busy machine. The guard needs less than a
/// second. Without its own writes, the kubelet's next write would take up to 310 s after a label.
const RAISE_TIMEOUT_SECONDS: f64 = 20.0;

fn millis(cpu: &str) -> u64 {
    cpu.strip_suffix('m').map_or_else(|| cpu.parse::<u64>().unwrap() * 1000, |text| text.parse().unwrap())
}

#[test]
fn container_sees_its_own_memory_cpus_and_uptime() {
    let words: Vec<&str> = reported("limited-meminfo").split_whitespace().collect();
    assert_eq!(words, ["MemTotal:", "262144", "kB"]);
    assert_eq!(reported("limited-processors"), "1");
    let seconds = |name| reported(name).split('.').next().unwrap().parse::<u64>().unwrap();
    assert!(seconds("limited-uptime") < 120 && seconds("limited-uptime") < seconds("node-uptime"));
}

#[test]
fn free_shows_the_memory_limit() {
    let total = reported("limited-free").split("Mem:").nth(1).unwrap().split_whitespace().next().unwrap();
    assert_eq!(total, "262144");
}

#[test]
fn pod_in_restricted_namespace_starts_unmutated() {
    assert!(
        reported("strict-output").contains("Warning: lxcfs was not injected"),
        "{}",
        reported("strict-output")
    );
    assert_eq!(reported("strict-meminfo"), reported("node-meminfo"), "the values of the node");
}

#[test]
fn pod_waits_for_lxcfs_and_starts_once_it_runs() {
    assert!(reported("missing-event").starts_with("FailedMount: "), "{}", reported("missing-event"));
    assert_eq!(reported("missing-phase"), "Pending");
    assert!(reported("missing-meminfo").contains("262144"), "{}", reported("missing-meminfo"));
    assert!(reported("injected").parse::<u64>().unwrap() >= 3);
}

#[test]
fn daemonset_serves_lxcfs_and_labels_its_node() {
    assert_eq!(reported("unserved-label"), "");
    assert!(reported("daemonset-meminfo").contains("262144"), "{}", reported("daemonset-meminfo"));
    assert!(
        reported("daemonset-affinity").contains("node-restriction.kubernetes.io/lxcfs-ready"),
        "{}",
        reported("daemonset-affinity")
    );
}

#[test]
fn killed_lxcfs_restarts_over_its_dead_mount() {
    assert!(reported("killed-meminfo").contains("262144"), "{}", reported("killed-meminfo"));
}

/// The liveness probe of the test is faster than the shipped one, and otherwise the same.
#[test]
fn hung_lxcfs_is_restarted_and_serves_again() {
    assert_eq!(reported("hung-read"), "124", "a read waits");
    assert_eq!(reported("hung-label"), "");
    assert_eq!(reported("hung-restarts"), "1");
    assert_eq!(reported("hung-process"), "ended");
    assert_eq!(reported("disconnected-read"), "1", "a read in a container of before fails");
    assert!(reported("hung-meminfo").contains("262144"), "{}", reported("hung-meminfo"));
}

#[test]
fn deleted_daemonset_removes_its_mount_and_label() {
    assert_eq!(reported("removed-mounts"), "0");
    assert_eq!(reported("removed-label"), "");
}

#[test]
fn allocatable_is_stable_over_concurrent_writers() {
    assert_eq!(millis(reported("out-allocatable")), 2 * millis(reported("raw-allocatable")));
    assert_eq!(reported("seen-allocatable"), reported("out-allocatable"));
    assert_eq!(reported("other-writers"), "3");
    assert_eq!(reported("writers-responses"), [reported("out-allocatable"); 3].join(" "));
    assert_eq!(reported("kubelet-updates"), "10", "counted by the heartbeats of the node");
    assert!(reported("node-updates").parse::<u64>().unwrap() >= 13, "{}", reported("node-updates"));
}

/// No helper writes the status. The bound separates the guard's own write from the kubelet's.
#[test]
fn guard_raises_node_long_before_the_kubelet_writes() {
    for (name, timeout) in
        [("raised-after", RAISE_TIMEOUT_SECONDS), ("recovered-after", RAISE_TIMEOUT_SECONDS)]
    {
        let seconds: f64 = reported(name).parse().unwrap();
        eprintln!("{name} {seconds} s");
        assert!(seconds < timeout, "{name}: {seconds} s");
    }
}

#[test]
fn job_with_injected_native_sidecar_completes() {
    assert!(reported("job-sidecar").starts_with("agent Always"), "{}", reported("job-sidecar"));
    assert_eq!(reported("job-succeeded"), "1");
    assert_eq!(reported("job-phase"), "Succeeded");
}

#[test]
fn removed_record_is_restored_without_doubling() {
    assert!(millis(reported("unrecorded-allocatable")) <= millis(reported("out-allocatable")));
    assert_eq!(reported("again-allocatable"), reported("out-allocatable"));
}

#[test]
fn restarted_guard_raises_the_node_again() {
    assert_eq!(reported("outage-allocatable"), reported("raw-allocatable"), "the kubelet's values");
    assert_eq!(reported("recovered-allocatable"), reported("out-allocatable"));
}

#[test]
fn starts_pod_that_requests_more_cpu_than_the_machine() {
    assert_eq!(reported("large-pod"), "started");
}

#[test]
fn removed_label_restores_the_values_of_the_node() {
    assert_eq!(reported("restored-allocatable"), reported("raw-allocatable"));
    assert_eq!(reported("end"), "reached");
}
