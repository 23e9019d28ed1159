//! Directories for volumes. Those of claims outlive their pods; those of `emptyDir` and Secrets are removed with the
//! pod.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Volume};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

/// Creates a volume for each unbound claim, as a provisioner does; the controller manager binds them.
pub(super) async fn provision(
    admin: &Client,
    claims: &[PersistentVolumeClaim],
    dir: &Path,
) -> Result<(), kube::Error> {
    let volumes: Api<PersistentVolume> = Api::all(admin.clone());
    for claim in claims {
        let (metadata, Some(spec)) = (&claim.metadata, &claim.spec) else { continue };
        let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        if is_bound || metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (Some(name), Some(namespace), Some(uid)) = (&metadata.name, &metadata.namespace, &metadata.uid)
        else {
            continue;
        };
        let directory = dir.join("volumes").join(uid);
        std::fs::create_dir_all(&directory).expect("a volume's directory");
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": format!("{namespace}-{name}-{uid}")},
            "spec": {
                "accessModes": spec.access_modes,
                "capacity": spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()),
                "claimRef": {"namespace": namespace, "name": name, "uid": uid},
                "hostPath": {"path": directory},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": spec.storage_class_name.as_deref().unwrap_or_default(),
            },
        });
        let volume = serde_json::from_value(volume).expect("a PersistentVolume");
        match volumes.create(&PostParams::default(), &volume).await {
            // The volume was created a moment ago and is not bound yet.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// Returns the directories of a container's volumes by mount path, or `None` while a claim is not bound or a Secret
/// does not exist.
pub(super) async fn mounts(
    admin: &Client,
    pod: &Pod,
    container: &Container,
    pod_dir: &Path,
) -> Result<Option<BTreeMap<String, PathBuf>>, kube::Error> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mut mounts = BTreeMap::new();
    for mount in container.volume_mounts.iter().flatten() {
        let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
        let directory = if let Some(claim) = &volume.persistent_volume_claim {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            match directory_of_claim(admin, namespace, &claim.claim_name).await? {
                Some(directory) => directory,
                None => return Ok(None),
            }
        } else if let Some(secret) = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let directory = pod_dir.join(&volume.name);
            if !write_secret(admin, namespace, secret, &directory).await? {
                return Ok(None);
            }
            directory
        } else if let Some(directory) = directory_of(volume, pod_dir) {
            directory
        } else {
            continue;
        };
        mounts.insert(mount.mount_path.clone(), directory);
    }
    Ok(Some(mounts))
}

async fn directory_of_claim(
    admin: &Client,
    namespace: &str,
    claim: &str,
) -> Result<Option<PathBuf>, kube::Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), namespace);
    let Some(claim) = claims.get_opt(claim).await? else { return Ok(None) };
    let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let Some(volume) = claim.spec.and_then(|spec| spec.volume_name).filter(|_| is_bound) else {
        return Ok(None);
    };
    let volume = Api::<PersistentVolume>::all(admin.clone()).get(&volume).await?;
    Ok(volume.spec.and_then(|spec| spec.host_path).map(|path| PathBuf::from(path.path)))
}

/// Writes each key of a Secret as a file, and returns whether the Secret exists. Later changes of the Secret are not
/// written.
async fn write_secret(
    admin: &Client,
    namespace: &str,
    name: &str,
    directory: &Path,
) -> Result<bool, kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), namespace);
    let Some(secret) = secrets.get_opt(name).await? else { return Ok(false) };
    std::fs::create_dir_all(directory).expect("a Secret's directory");
    for (key, value) in secret.data.unwrap_or_default() {
        std::fs::write(directory.join(key), value.0).expect("a Secret's file");
    }
    Ok(true)
}

fn directory_of(volume: &Volume, pod_dir: &Path) -> Option<PathBuf> {
    if let Some(path) = &volume.host_path {
        return Some(PathBuf::from(&path.path));
    }
    volume.empty_dir.as_ref()?;
    let directory = pod_dir.join(&volume.name);
    std::fs::create_dir_all(&directory).expect("an emptyDir's directory");
    Some(directory)
}
