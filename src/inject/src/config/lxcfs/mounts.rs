//! Volumes and mounts for the files of lxcfs. They are computed once, because they are equal for all containers.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::file::LxcfsFile;

/// A hostPath volume and its mount.
#[derive(Clone, Debug)]
pub struct LxcfsMount {
    /// The file; `None` for the parent directory of the root.
    pub file: Option<LxcfsFile>,
    /// The path in a container.
    pub path: String,
    /// The hostPath volume, with a unique name.
    pub volume: Value,
    /// The mount of the volume.
    pub mount: Value,
}

/// The mounts of all files, followed by the mount of the parent directory of the root.
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts(OnceLock<Vec<LxcfsMount>>);

// === impl Mounts ===

impl Mounts {
    /// Returns the mount of a file below `root`, or, without a file, of the directory `parent` of the root.
    pub(super) fn get(&self, root: &str, parent: &str, file: Option<LxcfsFile>) -> Option<&LxcfsMount> {
        let mounts = self.0.get_or_init(|| {
            let files = LxcfsFile::ALL.iter().map(|file| LxcfsMount::from_file(*file, root));
            files.chain([LxcfsMount::from_parent(parent)]).collect()
        });
        mounts.iter().find(|mount| mount.file == file)
    }
}

// === impl LxcfsMount ===

impl LxcfsMount {
    fn from_file(file: LxcfsFile, root: &str) -> Self {
        let path = file.path();
        let name = format!("lxcfs-{}", path.trim_start_matches('/').replace('/', "-"));
        let kind = if file.is_directory() { "Directory" } else { "File" };
        let source = json!({"path": format!("{}{path}", root.trim_end_matches('/')), "type": kind});
        let mount = json!({"name": name, "mountPath": path, "readOnly": true});
        Self {
            file: Some(file),
            path: path.to_owned(),
            volume: json!({"name": name, "hostPath": source}),
            mount,
        }
    }

    fn from_parent(parent: &str) -> Self {
        let volume = json!({"name": "lxcfs-root", "hostPath": {"path": parent, "type": "Directory"}});
        let mount = json!({
            "name": "lxcfs-root", "mountPath": parent, "readOnly": true, "mountPropagation": "HostToContainer",
        });
        Self { file: None, path: parent.to_owned(), volume, mount }
    }
}
