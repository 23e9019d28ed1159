//! Where a backup goes: a file, a directory or a bucket of S3.
//!
//! A file is written as `FILE.part`, synchronized, and renamed; an object is a multipart upload. Both appear at once, or not at all.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use futures::TryStreamExt as _;
use object_store::{
    ClientConfigKey, ObjectStore, ObjectStoreExt as _, WriteMultipart,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    path::Path as Key,
};
use tokio::{
    fs::{self, File, OpenOptions},
    io::AsyncWriteExt as _,
    time::timeout,
};

use crate::durations;
use etcd_guard_cli::printing::plain;
use etcd_guard_core::{
    escape::{MAX_ERROR_CHARS, to_bounded_line},
    etcd::member::mebibytes,
};

/// Size of a part of an upload. S3 permits 10,000 parts, hence 80 GiB; etcd recommends databases of at most 8 GiB.
const PART_BYTES: usize = 8 << 20;

/// Parts that are sent at a time, and thereby in memory.
const CONCURRENT_PARTS: usize = 2;

/// Time for one request to S3: a part at 1 Mbit/s.
const REQUEST_LIMIT: &str = "70s";

/// Time for a download, which has no pause longer than [`REQUEST_LIMIT`].
pub(crate) const DOWNLOAD_LIMIT: &str = "6h";

/// Time until a written backup is on the disk, or the store has combined the parts.
const FINISH_LIMIT: Duration = Duration::from_secs(300);

/// Time to remove an upload that failed.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// Between the parts of a name. Names of namespaces and StatefulSets do not contain it.
const SEPARATOR: char = '_';

/// End of the name of a file that is being written.
const PART: &str = ".part";

/// Age of a file of a killed run, which `--keep` deletes.
const PART_AGE: Duration = Duration::from_hours(24);

/// End of the names of backups.
pub(crate) const SUFFIX: &str = ".db";

/// What the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Path(String),
    S3 { bucket: String, prefix: String },
}

/// The cluster of a backup, as the beginning of its name: `NAMESPACE_CLUSTER_`.
pub(crate) struct Stem(String);

/// The place of one backup.
pub(crate) enum Destination {
    File(PathBuf),
    Object { store: Arc<dyn ObjectStore>, bucket: String, key: Key },
}

/// A backup that is being written.
pub(crate) enum Writer {
    File { file: File, part: PathBuf, path: PathBuf },
    Object { upload: WriteMultipart, store: Arc<dyn ObjectStore>, key: Key },
}

/// Returns the name of the file while it is written.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    PathBuf::from(name)
}

/// Describes an error of the store on one line.
pub(crate) fn described(operation: &str, error: &object_store::Error) -> anyhow::Error {
    anyhow::anyhow!("{operation}: {}", to_bounded_line(&plain(&error.to_string()), MAX_ERROR_CHARS))
}

/// Returns the client of a bucket, with the credentials of the usual variables and of the pod, and this time for a request.
pub(crate) fn bucket_client(bucket: &str, request_limit: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    let is_plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .is_some_and(|url| url.starts_with("http://"));
    let limit = AmazonS3ConfigKey::Client;
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(limit(ClientConfigKey::Timeout), request_limit)
        .with_config(limit(ClientConfigKey::ReadTimeout), REQUEST_LIMIT);
    let store = if is_plain { builder.with_allow_http(true) } else { builder }.build();
    Ok(Arc::new(store.map_err(|error| described(&format!("bucket {bucket} cannot be used"), &error))?))
}

// === impl Choice ===

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || Err(String::from("expected a file, a directory, or s3://BUCKET/PREFIX"));
        match text.split_once("://") {
            None if text.is_empty() => invalid(),
            None => Ok(Self::Path(text.to_owned())),
            Some(("s3", place)) => {
                let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
                if bucket.is_empty() {
                    return invalid();
                }
                Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() })
            }
            Some(_) => invalid(),
        }
    }
}

impl Choice {
    /// Returns the place of a backup with this revision and this time.
    pub(crate) fn place(&self, stem: &Stem, revision: u64, time: &str) -> anyhow::Result<Destination> {
        let name = format!("{}{revision}{SEPARATOR}{time}{SUFFIX}", stem.0);
        match self {
            Self::Path(text) => {
                let path = Path::new(text);
                let is_directory = text.ends_with('/') || path.is_dir();
                Ok(Destination::File(if is_directory { path.join(name) } else { path.to_owned() }))
            }
            Self::S3 { bucket, prefix } => {
                let key = Key::parse(format!("{prefix}/{name}").trim_start_matches('/'));
                let key = key.with_context(|| format!("{prefix} is no prefix of keys"))?;
                Ok(Destination::Object {
                    store: bucket_client(bucket, REQUEST_LIMIT)?,
                    bucket: bucket.clone(),
                    key,
                })
            }
        }
    }
}

// === impl Stem ===

impl Stem {
    pub(crate) fn new(namespace: &str, cluster: &str) -> Self {
        let is_kept =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
        // The name of a cluster without an owner consists of labels.
        let cluster = cluster.replace(|letter| !is_kept(letter), "-");
        Self(format!("{namespace}{SEPARATOR}{cluster}{SEPARATOR}"))
    }

    /// Returns the time and the revision of a backup of this cluster, from its name.
    pub(crate) fn parse(&self, name: &str) -> Option<(String, u64)> {
        let rest = name.strip_prefix(&self.0)?.strip_suffix(SUFFIX)?;
        let (revision, time) = rest.split_once(SEPARATOR)?;
        let is_time = time.len() == "20261201T030000Z".len() && time.starts_with('2');
        is_time.then(|| Some((time.to_owned(), revision.parse().ok()?)))?
    }

    /// Returns the names of backups of this cluster, the newest first.
    pub(crate) fn newest_first(&self, names: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut backups: Vec<_> =
            names.into_iter().filter_map(|name| Some((self.parse(&name)?, name))).collect();
        backups.sort_unstable();
        backups.into_iter().rev().map(|(_, name)| name).collect()
    }

    /// Returns those of these names that are older backups of the same cluster than the newest `keep`.
    fn outdated(&self, names: impl IntoIterator<Item = String>, keep: usize) -> Vec<String> {
        self.newest_first(names).into_iter().skip(keep).collect()
    }
}

impl fmt::Display for Stem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Destination ===

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Object { bucket, key, .. } => write!(f, "s3://{bucket}/{key}"),
        }
    }
}

impl Destination {
    /// Returns an error if the destination exists, or has no room for this number of bytes.
    pub(crate) fn check(&self, bytes: u64, overwrites: bool) -> anyhow::Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        anyhow::ensure!(overwrites || !path.exists(), "{self} exists; to overwrite it: --force");
        let folder = folder(path);
        let space = rustix::fs::statvfs(folder)
            .with_context(|| format!("directory {} cannot be used", folder.display()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        anyhow::ensure!(
            free > bytes,
            "the database has {}, and {} only {} of free space",
            mebibytes(bytes),
            folder.display(),
            mebibytes(free)
        );
        Ok(())
    }

    /// Starts to write.
    pub(crate) async fn open(&self) -> anyhow::Result<Writer> {
        match self {
            Self::File(path) => {
                let part = part_of(path);
                // Only for the owner: a backup contains all values.
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(&part).await;
                let file = file.with_context(|| format!("failed to create {}", part.display()))?;
                Ok(Writer::File { file, part, path: path.clone() })
            }
            Self::Object { store, key, .. } => {
                let upload = store.put_multipart(key).await;
                let upload =
                    upload.map_err(|error| described(&format!("failed to create {self}"), &error))?;
                let upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
                Ok(Writer::Object { upload, store: Arc::clone(store), key: key.clone() })
            }
        }
    }

    /// Deletes all backups of this cluster at this place but the newest ones. Returns their names.
    pub(crate) async fn prune(&self, stem: &Stem, keep: usize) -> anyhow::Result<Vec<String>> {
        match self {
            Self::File(path) => {
                let folder = folder(path);
                let failed = || format!("failed to delete older backups in {}", folder.display());
                let mut names = Vec::new();
                let mut entries = fs::read_dir(folder).await.with_context(failed)?;
                while let Some(entry) = entries.next_entry().await.with_context(failed)? {
                    names.extend(entry.file_name().into_string());
                }
                let is_of_killed_run = |name: &String| {
                    let path = folder.join(name);
                    let age = path
                        .metadata()
                        .and_then(|file| file.modified())
                        .ok()
                        .and_then(|time| time.elapsed().ok());
                    let complete = name.strip_suffix(PART);
                    complete.is_some_and(|name| stem.parse(name).is_some())
                        && age.is_some_and(|age| age > PART_AGE)
                };
                let mut outdated: Vec<String> =
                    names.iter().filter(|name| is_of_killed_run(name)).cloned().collect();
                outdated.extend(stem.outdated(names, keep));
                for name in &outdated {
                    fs::remove_file(folder.join(name)).await.with_context(failed)?;
                }
                Ok(outdated)
            }
            Self::Object { store, key, bucket } => {
                let failed =
                    |error| described(&format!("failed to delete older backups in {bucket}"), &error);
                let parts: Vec<_> = key.parts().collect();
                let prefix: Key = parts
                    .split_last()
                    .map(|(_, folder)| folder.iter().cloned().collect())
                    .unwrap_or_default();
                let listed = store.list(Some(&prefix)).map_ok(|object| object.location);
                let listed: Vec<Key> = listed.try_collect().await.map_err(failed)?;
                let is_here =
                    |other: &&Key| other.prefix_matches(&prefix) && other.parts().count() == parts.len();
                let names = listed.iter().filter(is_here).filter_map(|key| Some(key.filename()?.to_owned()));
                let outdated = stem.outdated(names, keep);
                for name in &outdated {
                    store.delete(&prefix.clone().join(name.as_str())).await.map_err(failed)?;
                }
                Ok(outdated)
            }
        }
    }
}

/// Returns the directory of a file.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

// === impl Writer ===

impl Writer {
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::File { file, part, .. } => {
                let written = file.write_all(bytes).await;
                written.with_context(|| format!("failed to write {}", part.display()))
            }
            Self::Object { upload, key, .. } => {
                let sent = upload.wait_for_capacity(CONCURRENT_PARTS).await;
                sent.map_err(|error| described(&format!("failed to upload {key}"), &error))?;
                upload.write(bytes);
                Ok(())
            }
        }
    }

    /// Makes the backup appear under its name, with all of its bytes.
    pub(crate) async fn finish(self, bytes: u64) -> anyhow::Result<()> {
        let finished = timeout(FINISH_LIMIT, self.publish(bytes)).await;
        finished.with_context(|| format!("it is not stored within {}", durations::text(FINISH_LIMIT)))?
    }

    async fn publish(self, bytes: u64) -> anyhow::Result<()> {
        match self {
            Self::File { mut file, part, path } => {
                let renamed = async {
                    file.flush().await?;
                    file.sync_all().await?;
                    fs::rename(&part, &path).await?;
                    File::open(folder(&path)).await?.sync_all().await
                };
                let renamed = renamed.await;
                if renamed.is_err() {
                    let _ = fs::remove_file(&part).await;
                }
                renamed.with_context(|| format!("failed to write {}", path.display()))
            }
            Self::Object { upload, store, key } => {
                let failed = |error| described(&format!("failed to upload {key}"), &error);
                upload.finish().await.map_err(failed)?;
                let stored = store.head(&key).await.map_err(failed)?.size;
                if stored != bytes {
                    bail!("{key} has {stored} bytes, but {bytes} were uploaded");
                }
                Ok(())
            }
        }
    }

    /// Removes what was written.
    pub(crate) async fn discard(self) {
        match self {
            Self::File { part, .. } => drop(fs::remove_file(part).await),
            Self::Object { upload, .. } => drop(timeout(ABORT_LIMIT, upload.abort()).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    const TIME: &str = "20261201T030000Z";

    #[test]
    fn names_have_the_cluster_the_revision_and_the_time() {
        // The command does that when it starts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let stem = Stem::new("prod", "etcd");
        let place = |text: &str| text.parse::<Choice>().unwrap().place(&stem, 42, TIME).unwrap().to_string();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let name = format!("prod_etcd_42_{TIME}.db");
        assert_eq!(place(folder), format!("{folder}/{name}"));
        assert_eq!(place("new/"), format!("new/{name}"));
        assert_eq!(place("etcd.db"), "etcd.db");
        assert_eq!(place("s3://backups"), format!("s3://backups/{name}"));
        assert_eq!(place("s3://backups/a/b/"), format!("s3://backups/a/b/{name}"));
        for wrong in ["", "s3://", "s3:///a", "gs://backups"] {
            let error = wrong.parse::<Choice>().unwrap_err();
            assert_eq!(error, "expected a file, a directory, or s3://BUCKET/PREFIX", "{wrong}");
        }
        assert_eq!(Stem::new("prod", "app=etcd,a/b").0, "prod_app-etcd-a-b_");
    }

    #[test]
    fn only_older_backups_of_the_same_cluster_are_outdated() {
        let names = [
            "prod_etcd_900_20261129T030000Z.db",
            "prod_etcd_1000_20261201T030000Z.db",
            "prod_etcd_950_20261130T030000Z.db",
            "prod_etcd-2_1_20261101T030000Z.db",
            "prod_etcd_mine.db",
            "prod_etcd_1_20261101T030000Z.db.part",
            "test_etcd_1_20261101T030000Z.db",
        ];
        let stem = Stem::new("prod", "etcd");
        let outdated = |keep| stem.outdated(names.map(String::from), keep);
        assert_eq!(outdated(1), [names[2], names[0]]);
        assert_eq!(outdated(2), [names[0]]);
        assert!(outdated(3).is_empty());
    }

    #[tokio::test]
    async fn file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.db");
        let (destination, part) = (Destination::File(path.clone()), part_of(&path));
        for is_complete in [false, true] {
            let mut writer = destination.open().await.unwrap();
            writer.write(b"data").await.unwrap();
            assert!(part.exists() && !path.exists());
            if is_complete {
                writer.finish(4).await.unwrap();
            } else {
                writer.discard().await;
            }
            assert_eq!((part.exists(), path.exists()), (false, is_complete));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        let error = destination.check(1, false).unwrap_err().to_string();
        assert_eq!(error, format!("{} exists; to overwrite it: --force", path.display()));
        destination.check(1, true).unwrap();
        let error = destination.check(u64::MAX, true).unwrap_err().to_string();
        assert!(error.contains(" of free space"), "{error}");
    }

    #[tokio::test]
    async fn object_appears_when_it_is_complete() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let at = |name: &str| Destination::Object {
            store: Arc::clone(&store),
            bucket: String::from("backups"),
            key: Key::from(format!("a/{name}")),
        };
        let stem = Stem::new("prod", "etcd");
        let data = vec![1; PART_BYTES + 1];
        for (index, is_complete) in [false, true, true].into_iter().enumerate() {
            let mut writer = at(&format!("prod_etcd_{index}_{TIME}.db")).open().await.unwrap();
            writer.write(&data).await.unwrap();
            if is_complete {
                writer.finish(data.len().try_into().unwrap()).await.unwrap();
            } else {
                writer.discard().await;
            }
        }
        let newest = at(&format!("prod_etcd_2_{TIME}.db"));
        assert_eq!(newest.prune(&stem, 1).await.unwrap(), [format!("prod_etcd_1_{TIME}.db")]);
        let Destination::Object { key, .. } = &newest else { unreachable!() };
        assert_eq!(store.get(key).await.unwrap().bytes().await.unwrap(), data);
    }
}
