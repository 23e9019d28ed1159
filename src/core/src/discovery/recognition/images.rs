//! The names of images and of environment variables that indicate a member.

/// Variables that configure a member and no client.
const MEMBER_VARIABLES: [&str; 5] = [
    "ETCD_INITIAL_ADVERTISE_PEER_URLS",
    "ETCD_LISTEN_PEER_URLS",
    "ETCD_LISTEN_CLIENT_URLS",
    "ETCD_INITIAL_CLUSTER_STATE",
    "ETCD_INITIAL_CLUSTER_TOKEN",
];

/// The variable that configures a member together with one of [`COMPANIONS`].
const NAME: &str = "ETCD_NAME";

/// Variables that programs other than etcd use as well.
const COMPANIONS: [&str; 3] = ["ETCD_INITIAL_CLUSTER", "ETCD_ADVERTISE_CLIENT_URLS", "ETCD_DATA_DIR"];

/// Words of image names that do not change the program: vendors, platforms, base images and wrappers that run etcd.
const NEUTRAL_WORDS: [&str; 48] = [
    "etcd",
    "coreos",
    "bitnami",
    "wrapper",
    "launcher",
    "server",
    "cluster",
    "member",
    "node",
    "amd64",
    "arm64",
    "arm",
    "armhf",
    "ppc64le",
    "s390x",
    "riscv64",
    "x86",
    "linux",
    "alpine",
    "debian",
    "bookworm",
    "bullseye",
    "ubuntu",
    "ubi",
    "ubi8",
    "ubi9",
    "rhel7",
    "rhel8",
    "rhel9",
    "distroless",
    "scratch",
    "chainguard",
    "wolfi",
    "fips",
    "slim",
    "static",
    "nonroot",
    "rootless",
    "hardened",
    "mirrored",
    "legacy",
    "secure",
    "k8s",
    "kubernetes",
    "openshift",
    "ose",
    "docker",
    "container",
];

/// Words of image names of programs that use etcd, or manage it, and run no member.
const OTHER_PROGRAMS: [&str; 56] = [
    "operator",
    "druid",
    "backup",
    "backups",
    "restore",
    "exporter",
    "metrics",
    "monitor",
    "monitoring",
    "proxy",
    "gateway",
    "keeper",
    "browser",
    "viewer",
    "ui",
    "webui",
    "web",
    "console",
    "dashboard",
    "client",
    "cli",
    "tool",
    "tools",
    "toolbox",
    "util",
    "utils",
    "test",
    "tests",
    "tester",
    "bench",
    "benchmark",
    "defrag",
    "defragger",
    "defragmentation",
    "snapshot",
    "snapshots",
    "snapshotter",
    "maintenance",
    "compaction",
    "controller",
    "adapter",
    "sync",
    "syncer",
    "watcher",
    "init",
    "discovery",
    "dns",
    "cron",
    "cronjob",
    "dump",
    "migrator",
    "migration",
    "health",
    "healthcheck",
    "certs",
    "recovery",
];

/// The program that the name of an image indicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageKind {
    /// The name consists of `etcd`, and of words that do not change the program.
    Etcd,
    /// The name contains `etcd` and words of unknown meaning.
    Unknown,
    /// The name contains `etcd` and this word of another program.
    Other(&'static str),
    /// The name does not contain the word `etcd`.
    Unrelated,
}

// === impl ImageKind ===

impl ImageKind {
    /// Reads the last path segment of an image reference without tag and digest: `etcd` for
    /// `quay.io/coreos/etcd:v3.6.16@sha256:...`.
    pub(super) fn new(image: &str) -> Self {
        let reference = image.split('@').next().unwrap_or(image);
        let last = reference.rsplit('/').next().unwrap_or(reference);
        Self::from_name(last.split(':').next().unwrap_or(last))
    }

    /// Reads a name with words that punctuation separates.
    pub(super) fn from_name(name: &str) -> Self {
        let words = || name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        if !words().any(|word| word == "etcd") {
            return Self::Unrelated;
        }
        if let Some(other) = OTHER_PROGRAMS.iter().find(|other| words().any(|word| word == **other)) {
            return Self::Other(other);
        }
        if words().all(|word| NEUTRAL_WORDS.contains(&word) || is_version(word)) {
            Self::Etcd
        } else {
            Self::Unknown
        }
    }
}

/// Whether a word is a part of a version: `3`, `v3`, `rc1` or `r0`.
fn is_version(word: &str) -> bool {
    let number = ["v", "rc", "r", "alpha", "beta"].iter().find_map(|prefix| word.strip_prefix(prefix));
    number.unwrap_or(word).starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the variable that shows that a container is configured as a member.
pub(super) fn member_variable<'a>(variables: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    let (mut has_name, mut has_companion) = (false, false);
    for variable in variables {
        if let Some(found) = MEMBER_VARIABLES.iter().find(|known| **known == variable) {
            return Some(found);
        }
        has_name |= variable == NAME;
        has_companion |= COMPANIONS.contains(&variable);
    }
    (has_name && has_companion).then_some(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_image_names_by_word() {
        for image in [
            "etcd",
            "quay.io/coreos/etcd:v3.6.16",
            "registry.example:5000/etcd@sha256:1",
            "rancher/mirrored-coreos-etcd:v3.5.9",
            "registry.k8s.io/etcd-amd64:3.1.12",
            "gardener/etcd-wrapper:v0.6.0",
            "quay.io/kubermatic/etcd-launcher:v2.27.0",
            "x/etcd-3.5",
            "x/etcd_v3.5.1-rc0",
            "openshift/ose-etcd-rhel9",
        ] {
            assert_eq!(ImageKind::new(image), ImageKind::Etcd, "{image}");
        }
        for (image, word) in [
            ("quay.io/etcd-io/etcd-operator:v0.1", "operator"),
            ("etcd-druid", "druid"),
            ("x/etcd-backup-restore:1", "backup"),
            ("tools/etcd-defrag", "defrag"),
        ] {
            assert_eq!(ImageKind::new(image), ImageKind::Other(word), "{image}");
        }
        assert_eq!(ImageKind::new("kopeio/etcd-manager"), ImageKind::Unknown);
        for image in ["nginx", "etcd/tools", "etcdbrctl", "x/etcdkeeper", "nginx:etcd", "a@etcd", ""] {
            assert_eq!(ImageKind::new(image), ImageKind::Unrelated, "{image}");
        }
    }

    #[test]
    fn recognizes_variables_of_members_only() {
        let variable = |names: &[&'static str]| member_variable(names.iter().copied());
        assert_eq!(variable(&["A", "ETCD_LISTEN_CLIENT_URLS"]), Some("ETCD_LISTEN_CLIENT_URLS"));
        assert_eq!(variable(&["ETCD_DATA_DIR", "ETCD_NAME"]), Some("ETCD_NAME"));
        for names in [&["ETCD_NAME"][..], &["ETCD_ENDPOINTS", "ETCD_DATA_DIR"], &["ETCDCTL_API"], &[]] {
            assert_eq!(variable(names), None, "{names:?}");
        }
    }
}
