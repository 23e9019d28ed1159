//! Which files of lxcfs a container gets, and which pods get them.
//!
//! Which release of lxcfs has which file: lxc/lxcfs `src/proc_fuse.c`, `src/sysfs_fuse.c`. What a container runtime
//! lets be mounted under /proc: opencontainers/runc `libcontainer/rootfs_linux.go` (`checkProcMount`).

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Check, Match,
    lxcfs_mounts::Mounts,
    syntax::{check_key, check_label_value},
};

/// How pods get the files of lxcfs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools, reason = "as the file is written")]
pub struct Lxcfs {
    /// Where lxcfs is mounted on the nodes.
    pub root: String,
    /// The oldest lxcfs on the nodes: which files there are.
    pub profile: Profile,
    /// The files to mount. Absent: those that are safe and that the profile has.
    #[schemars(extend("default" = null))]
    pub files: Option<Vec<LxcfsFile>>,
    /// Mount files also that the profile lacks or that runc refuses; its containers would not start.
    pub force: bool,
    /// Also in init containers that end before the others start.
    pub init_containers: bool,
    /// Only in containers with a limit of CPU or memory: others would see the node as it is anyway.
    pub only_with_limits: bool,
    /// What to do with pods whose containers share a process namespace: lxcfs then shows the pod's limits in all.
    pub shared_process_namespace: SharedProcessNamespace,
    /// Pods of these runtime classes see no files of the host, or have their own view: they are left alone. A `*` at
    /// the end stands for any ending.
    pub skip_runtime_classes: Vec<String>,
    /// Whether pods want, or only prefer, a node with the label below.
    pub node_affinity: NodeAffinity,
    /// What marks a node where lxcfs serves.
    pub node_label: NodeLabel,
    /// Mount the root's parent directory as well, so that an agent can repair the files after lxcfs restarted.
    pub repairable: bool,
    /// Pods that get the files without asking for them.
    #[serde(rename = "match")]
    #[schemars(extend("default" = null))]
    pub always: Option<Match>,
    /// Pods that get them only if they ask themselves.
    #[schemars(extend("default" = null))]
    pub never: Option<Match>,
    /// What follows from the root.
    #[serde(skip)]
    pub(super) mounts: Mounts,
}

/// A file, or a directory, that lxcfs serves.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum LxcfsFile {
    /// /proc/cpuinfo
    Cpuinfo,
    /// /proc/diskstats
    Diskstats,
    /// /proc/loadavg; shows the container's only if lxcfs runs with `-l`
    Loadavg,
    /// /proc/meminfo
    Meminfo,
    /// /proc/stat
    Stat,
    /// /proc/swaps
    Swaps,
    /// /proc/uptime
    Uptime,
    /// /proc/slabinfo; falls back to the host's, which only root may read there
    Slabinfo,
    /// /sys/devices/system/cpu/online
    CpuOnline,
    /// /sys/devices/system/cpu, the whole directory, in the place of `cpu-online`
    Cpu,
    /// /proc/pressure/cpu; runc refuses it
    PressureCpu,
    /// /proc/pressure/io; runc refuses it
    PressureIo,
    /// /proc/pressure/memory; runc refuses it
    PressureMemory,
}

/// A release of lxcfs, by the files that it has.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// 3.0
    #[serde(rename = "lxcfs-3.0")]
    Lxcfs30,
    /// 3.1 to 4.0
    #[serde(rename = "lxcfs-4")]
    Lxcfs4,
    /// 5.0
    #[default]
    #[serde(rename = "lxcfs-5")]
    Lxcfs5,
    /// 6.0
    #[serde(rename = "lxcfs-6")]
    Lxcfs6,
    /// 7.0
    #[serde(rename = "lxcfs-7")]
    Lxcfs7,
}

/// What to do with pods that set `shareProcessNamespace`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum SharedProcessNamespace {
    /// Leave them alone, with a warning.
    #[default]
    Skip,
    /// Mount the files, with a warning that they show the pod's limits.
    Inject,
}

/// How much a pod wants a node with lxcfs.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum NodeAffinity {
    /// It runs nowhere else.
    Require,
    /// It runs elsewhere if need be, and waits there for lxcfs.
    Prefer,
    /// Nodes need no label.
    #[default]
    Off,
}

/// A label of a node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NodeLabel {
    /// The label's key.
    pub key: String,
    /// The label's value.
    pub value: String,
}

/// Directories that hold more than lxcfs: none of them is ever mounted into a container.
const SHARED_DIRECTORIES: [&str; 14] = [
    "", "/", "/dev", "/etc", "/home", "/mnt", "/opt", "/proc", "/root", "/run", "/srv", "/tmp", "/var",
    "/var/lib",
];

// === impl Lxcfs ===

impl Default for Lxcfs {
    fn default() -> Self {
        Self {
            root: String::from("/var/lib/lxcfs"),
            profile: Profile::default(),
            files: None,
            force: false,
            init_containers: false,
            only_with_limits: false,
            shared_process_namespace: SharedProcessNamespace::default(),
            skip_runtime_classes: ["gvisor*", "kata*", "runsc*", "sysbox*"].map(String::from).into(),
            node_affinity: NodeAffinity::default(),
            node_label: NodeLabel::default(),
            repairable: false,
            always: None,
            never: None,
            mounts: Mounts::default(),
        }
    }
}

impl Lxcfs {
    /// The files that a pod gets that wants none in particular.
    #[must_use]
    pub fn files(&self) -> Vec<LxcfsFile> {
        let mut files = match &self.files {
            Some(files) => files.clone(),
            None => LxcfsFile::ALL
                .into_iter()
                .filter(|it| it.is_safe() && self.profile >= it.oldest_profile())
                .collect(),
        };
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The directory around the root.
    #[must_use]
    pub fn parent(&self) -> &str {
        self.root.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    /// Why a file cannot be mounted.
    #[must_use]
    pub fn obstacle(&self, file: LxcfsFile) -> Option<String> {
        if self.force {
            None
        } else if self.profile < file.oldest_profile() {
            Some(format!("{} needs a newer lxcfs than the profile", file.name()))
        } else if file.is_refused_by_runc() {
            Some(format!("{} is refused by runc: containers would not start", file.name()))
        } else {
            None
        }
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        if !self.root.starts_with('/') || self.root.split('/').any(|it| it == "..") {
            check.at("root").say(format!("{:?} is no absolute path", self.root));
        }
        let files = self.files.as_deref().unwrap_or_default();
        for (index, file) in files.iter().enumerate() {
            if let Some(obstacle) = self.obstacle(*file) {
                let text = format!("{obstacle}; `force: true` mounts it nevertheless");
                check.at("files").at(index).say(text);
            }
        }
        if files.contains(&LxcfsFile::Cpu) && files.contains(&LxcfsFile::CpuOnline) {
            check.at("files").say("cpu holds cpu-online: name one of the two");
        }
        if self.repairable && SHARED_DIRECTORIES.contains(&self.parent()) {
            let text = format!(
                "would show all of {:?} to containers: move the root into a directory of its own, such as \
                 /var/lib/lxcfs-root/lxcfs",
                self.parent()
            );
            check.at("repairable").say(text);
        }
        check_key(&self.node_label.key, &mut check.at("nodeLabel").at("key"));
        check_label_value(&self.node_label.value, &mut check.at("nodeLabel").at("value"));
        for (key, selector) in [("match", &self.always), ("never", &self.never)] {
            if let Some(selector) = selector {
                selector.check(&mut check.at(key));
            }
        }
    }
}

impl Default for NodeLabel {
    fn default() -> Self {
        Self { key: String::from("etcd-guard.io/lxcfs-ready"), value: String::from("true") }
    }
}

// === impl LxcfsFile ===

impl LxcfsFile {
    /// All that there are.
    pub const ALL: [Self; 13] = [
        Self::Cpuinfo,
        Self::Diskstats,
        Self::Loadavg,
        Self::Meminfo,
        Self::Stat,
        Self::Swaps,
        Self::Uptime,
        Self::Slabinfo,
        Self::CpuOnline,
        Self::Cpu,
        Self::PressureCpu,
        Self::PressureIo,
        Self::PressureMemory,
    ];

    /// As it is written in configurations and annotations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpuinfo => "cpuinfo",
            Self::Diskstats => "diskstats",
            Self::Loadavg => "loadavg",
            Self::Meminfo => "meminfo",
            Self::Stat => "stat",
            Self::Swaps => "swaps",
            Self::Uptime => "uptime",
            Self::Slabinfo => "slabinfo",
            Self::CpuOnline => "cpu-online",
            Self::Cpu => "cpu",
            Self::PressureCpu => "pressure-cpu",
            Self::PressureIo => "pressure-io",
            Self::PressureMemory => "pressure-memory",
        }
    }

    /// The file of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Where it is in a container, and under the root of lxcfs.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Cpuinfo => "/proc/cpuinfo",
            Self::Diskstats => "/proc/diskstats",
            Self::Loadavg => "/proc/loadavg",
            Self::Meminfo => "/proc/meminfo",
            Self::Stat => "/proc/stat",
            Self::Swaps => "/proc/swaps",
            Self::Uptime => "/proc/uptime",
            Self::Slabinfo => "/proc/slabinfo",
            Self::CpuOnline => "/sys/devices/system/cpu/online",
            Self::Cpu => "/sys/devices/system/cpu",
            Self::PressureCpu => "/proc/pressure/cpu",
            Self::PressureIo => "/proc/pressure/io",
            Self::PressureMemory => "/proc/pressure/memory",
        }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(self) -> bool {
        self == Self::Cpu
    }

    fn oldest_profile(self) -> Profile {
        match self {
            Self::Loadavg | Self::CpuOnline => Profile::Lxcfs4,
            Self::Slabinfo | Self::Cpu => Profile::Lxcfs5,
            Self::PressureCpu | Self::PressureIo | Self::PressureMemory => Profile::Lxcfs7,
            _ => Profile::Lxcfs30,
        }
    }

    fn is_refused_by_runc(self) -> bool {
        matches!(self, Self::PressureCpu | Self::PressureIo | Self::PressureMemory)
    }

    /// Whether a pod gets it unasked: `slabinfo` may show the host's, and the others stand in each other's place.
    fn is_safe(self) -> bool {
        !self.is_refused_by_runc() && !matches!(self, Self::Slabinfo | Self::Cpu)
    }
}
