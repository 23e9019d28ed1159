//! `etcd-guard certificates` as a process, and a mount of its Secret.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    guard::process::{Log, spawn_and_collect},
    processes::child::scoped_command,
    project,
    wait::wait_until,
};

/// The namespace of the guard.
const NAMESPACE: &str = "etcd-guard";

/// The keys of the shipped mount.
const KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// The interval at which the mount is updated. A kubelet needs up to a minute and a half.
const MOUNT_INTERVAL: Duration = Duration::from_millis(500);

/// The longest time until the Secret exists: the API server trusts its CA before.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running certificate manager. When it is dropped, it is killed.
pub struct CertificateManager {
    child: Child,
    log: Log,
}

/// A folder with two keys of a Secret, updated as a kubelet does: both at once, and not while one of them is missing or
/// after the Secret became immutable. When it is dropped, it is no longer updated.
pub struct MountedSecret {
    folder: PathBuf,
    task: JoinHandle<()>,
}

// === impl CertificateManager ===

impl CertificateManager {
    /// Starts a certificate manager.
    pub fn launch(kubeconfig: &Path, flags: &[&str]) -> Self {
        let log = Log::default();
        let mut command = scoped_command(project::guard_program());
        command.args(["certificates", "--log-format=json", "--namespace", NAMESPACE]);
        command.arg("--kubeconfig").arg(kubeconfig).args(flags);
        Self { child: spawn_and_collect(command, &log), log }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of log lines that contain this text.
    pub fn count_lines(&self, text: &str) -> usize {
        self.log.lock().expect("a log").iter().filter(|line| line.to_string().contains(text)).count()
    }
}

impl Drop for CertificateManager {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl MountedSecret ===

impl MountedSecret {
    /// Mounts a Secret at a new folder, and returns after both keys exist.
    pub async fn mount(client: Client, name: &str, folder: PathBuf) -> Self {
        let mount = Self::mount_optional(client, name, folder);
        let data = mount.folder.join("..data");
        wait_until("the Secret is mounted", MOUNT_TIMEOUT, async || data.exists()).await;
        mount
    }

    /// Mounts a Secret that need not exist at a new folder.
    pub fn mount_optional(client: Client, name: &str, folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).expect("a folder");
        for key in KEYS {
            symlink(Path::new("..data").join(key), folder.join(key)).expect("a link");
        }
        let task = tokio::spawn(update(Api::namespaced(client, NAMESPACE), name.to_owned(), folder.clone()));
        Self { folder, task }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for MountedSecret {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn update(secrets: Api<Secret>, name: String, folder: PathBuf) {
    let mut mounted = None;
    for version in 0.. {
        let secret = secrets.get_opt(&name).await.ok().flatten();
        let is_immutable = secret.as_ref().is_some_and(|secret| secret.immutable == Some(true));
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let values: Option<Vec<_>> = KEYS.iter().map(|key| Some(data.get(*key)?.0.clone())).collect();
        if let Some(values) = values.filter(|values| mounted.as_ref() != Some(values)) {
            let (data, link) = (format!("..{version}"), folder.join("..data_tmp"));
            fs::create_dir(folder.join(&data)).expect("a folder");
            for (key, value) in KEYS.iter().zip(&values) {
                fs::write(folder.join(&data).join(key), value).expect("a file");
            }
            symlink(&data, &link).expect("a link");
            fs::rename(&link, folder.join("..data")).expect("the link is replaced");
            mounted = Some(values);
        }
        if is_immutable {
            return;
        }
        sleep(MOUNT_INTERVAL).await;
    }
}
