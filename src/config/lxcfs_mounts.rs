//! What a pod gets for each file of lxcfs: worked out once, because every container of every pod gets the same.

use std::sync::OnceLock;

use serde_json::json;

use super::{Lxcfs, LxcfsFile};
use crate::json::Shared;

/// A volume of the host, and how containers mount it.
#[derive(Clone, Debug)]
pub struct LxcfsMount {
    /// Absent for the root's parent.
    pub file: Option<LxcfsFile>,
    /// Where it is in a container.
    pub path: String,
    /// A hostPath volume with a name of its own.
    pub volume: Shared,
    /// A mount of the volume.
    pub mount: Shared,
}

/// The mounts of all files, and the root's parent last.
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts(OnceLock<Vec<LxcfsMount>>);

// === impl Lxcfs ===

impl Lxcfs {
    /// How a file is mounted; without a file, the directory around the root.
    #[must_use]
    pub fn mount(&self, file: Option<LxcfsFile>) -> Option<&LxcfsMount> {
        let mounts = self.mounts.0.get_or_init(|| {
            let files = LxcfsFile::ALL.iter().map(|file| LxcfsMount::of_file(*file, &self.root));
            files.chain([LxcfsMount::of_parent(self.parent())]).collect()
        });
        mounts.iter().find(|it| it.file == file)
    }
}

// === impl LxcfsMount ===

impl LxcfsMount {
    fn of_file(file: LxcfsFile, root: &str) -> Self {
        let path = file.path();
        let name = format!("lxcfs-{}", path.trim_start_matches('/').replace('/', "-"));
        let kind = if file.is_directory() { "Directory" } else { "File" };
        let source = json!({"path": format!("{}{path}", root.trim_end_matches('/')), "type": kind});
        let mount = json!({"name": name, "mountPath": path, "readOnly": true});
        Self {
            file: Some(file),
            path: path.to_owned(),
            volume: json!({"name": name, "hostPath": source}).into(),
            mount: mount.into(),
        }
    }

    fn of_parent(parent: &str) -> Self {
        let volume = json!({"name": "lxcfs-root", "hostPath": {"path": parent, "type": "Directory"}});
        let mount = json!({
            "name": "lxcfs-root", "mountPath": parent, "readOnly": true, "mountPropagation": "HostToContainer",
        });
        Self { file: None, path: parent.to_owned(), volume: volume.into(), mount: mount.into() }
    }
}
