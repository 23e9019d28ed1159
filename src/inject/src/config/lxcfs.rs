//! The `lxcfs` section: the files of lxcfs that containers get, and the pods that get them.

mod file;
mod mounts;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::mounts::Mounts;
pub use self::{
    file::{LxcfsFile, Profile},
    mounts::LxcfsMount,
};
use etcd_guard_core::config::{
    diagnostic::Validator,
    selector::Match,
    syntax::{check_key, check_label_value},
};

/// Mounts of lxcfs files, so that a container sees its own limits in /proc and /sys.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools, reason = "the keys of the file are booleans")]
pub struct Lxcfs {
    /// The mount point of lxcfs on the nodes.
    pub root: String,
    /// The oldest release of lxcfs on your nodes, which decides which files exist.
    pub profile: Profile,
    /// The files to mount. Not set: all files of the profile that are safe to mount.
    #[schemars(extend("default" = null))]
    pub files: Option<Vec<LxcfsFile>>,
    /// Also mount files that the profile does not have or that runc rejects. A container does not start without its files.
    pub force: bool,
    /// Also mount the files in ordinary init containers.
    pub init_containers: bool,
    /// Mount the files only in containers with a CPU or memory limit, of their own or of the pod. The others see the node's
    /// values anyway.
    pub only_with_limits: bool,
    /// Pods with `shareProcessNamespace`. `skip`: they get no files, but a warning. `inject`: their containers see the limits
    /// of the whole pod.
    pub shared_process_namespace: SharedProcessNamespace,
    /// Also mount the files in pods with `hostUsers: false`. They start only with Linux 6.12 or newer and an lxcfs that sets
    /// `FUSE_ALLOW_IDMAP`: test it on every kind of node.
    pub user_namespaces: bool,
    /// Runtime classes whose pods get no files, because they cannot mount them or need none. A `*` at the end matches any
    /// suffix.
    pub skip_runtime_classes: Vec<String>,
    /// Whether pods with files require or prefer nodes with the `nodeLabel`. `off`: they run on any node.
    pub node_affinity: NodeAffinity,
    /// The label of nodes where lxcfs answers.
    pub node_label: NodeLabel,
    /// Also mount the parent directory of `root`, so that an agent can repair the mounts after a restart of lxcfs.
    pub repairable: bool,
    /// Pods that get the files without asking.
    #[serde(rename = "match")]
    #[schemars(extend("default" = null))]
    pub always: Option<Match>,
    /// Pods that get the files only if they ask themselves.
    #[schemars(extend("default" = null))]
    pub never: Option<Match>,
    /// The volumes and mounts, which depend on the root.
    #[serde(skip)]
    mounts: Mounts,
}

/// How to treat pods that set `shareProcessNamespace`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SharedProcessNamespace {
    /// Skip them, with a warning.
    #[default]
    Skip,
    /// Mount the files, with a warning that they show the limits of the pod.
    Inject,
}

/// Whether pods require or prefer nodes with lxcfs.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NodeAffinity {
    /// Pods run only on nodes with lxcfs.
    Require,
    /// Pods prefer nodes with lxcfs. On other nodes their containers wait until lxcfs runs.
    Prefer,
    /// Pods run on any node.
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

/// The default label. A kubelet cannot set a label with this prefix on its own node.
pub const NODE_LABEL: &str = "node-restriction.kubernetes.io/lxcfs-ready";

/// Directories that contain more than lxcfs. They are never mounted into a container.
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
            user_namespaces: false,
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
    /// Returns the files for a pod that does not request specific files.
    pub fn files(&self) -> Vec<LxcfsFile> {
        let mut files = match &self.files {
            Some(files) => files.clone(),
            None => LxcfsFile::ALL
                .into_iter()
                .filter(|file| file.is_safe() && self.profile >= file.oldest_profile())
                .collect(),
        };
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the parent directory of the root.
    pub fn parent(&self) -> &str {
        self.root.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    /// Returns the mount of a file or, without a file, of the parent directory of the root.
    pub fn mount(&self, file: Option<LxcfsFile>) -> Option<&LxcfsMount> {
        self.mounts.get(&self.root, self.parent(), file)
    }

    /// Returns the reason why a file cannot be mounted.
    pub fn obstacle(&self, file: LxcfsFile) -> Option<String> {
        if self.force {
            None
        } else if self.profile < file.oldest_profile() {
            Some(format!("{} requires a newer lxcfs than the profile", file.name()))
        } else if file.is_rejected_by_runc() {
            Some(format!("runc rejects {}: containers would not start", file.name()))
        } else {
            None
        }
    }

    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
        if !self.root.starts_with('/') || self.root.split('/').any(|part| part == "..") {
            validator.at("root").report(format!("{:?} is not an absolute path", self.root));
        }
        let files = self.files.as_deref().unwrap_or_default();
        for (index, file) in files.iter().enumerate() {
            if let Some(obstacle) = self.obstacle(*file) {
                let message = format!("{obstacle}; set `force: true` to mount it anyway");
                validator.at("files").at(index).report(message);
            }
        }
        if files.contains(&LxcfsFile::Cpu) && files.contains(&LxcfsFile::CpuOnline) {
            validator.at("files").report("cpu includes cpu-online: list only one of them");
        }
        if self.repairable && SHARED_DIRECTORIES.contains(&self.parent()) {
            let message = format!(
                "would expose all of {:?} to containers: move the root to a dedicated directory, such as \
                 /var/lib/lxcfs-root/lxcfs",
                self.parent()
            );
            validator.at("repairable").report(message);
        }
        check_key(&self.node_label.key, &mut validator.at("nodeLabel").at("key"));
        check_label_value(&self.node_label.value, &mut validator.at("nodeLabel").at("value"));
        for (key, selector) in [("match", &self.always), ("never", &self.never)] {
            if let Some(selector) = selector {
                selector.validate(&mut validator.at(key));
            }
        }
    }
}

impl Default for NodeLabel {
    fn default() -> Self {
        Self { key: String::from(NODE_LABEL), value: String::from("true") }
    }
}
