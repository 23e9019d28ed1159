//! The backup that is restored: found, copied to this machine, and verified before a member stops.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use futures::TryStreamExt as _;
use object_store::{ObjectStoreExt as _, path::Path as Key};
use tokio::{fs::File, io::AsyncReadExt as _};

use super::super::{
    backup::{
        checksum::Checksum,
        destination::{Choice, DOWNLOAD_LIMIT, Destination, SUFFIX, Stem, bucket_client, described},
    },
    reporter::Reporter,
};
use etcd_guard_core::etcd::member::mebibytes;

/// Size of the pieces in which a file is read.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// A verified backup on this machine.
pub(crate) struct Backup {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// The time and the revision, from the name.
    pub(crate) origin: Option<(String, u64)>,
}

/// Returns the backup at this place: the file, or the newest backup of the cluster in the directory or under the prefix. A backup in S3
/// is first copied to the current directory. `skips_hash` accepts a copied database, which has no hash at its end.
pub(crate) async fn find(
    choice: &Choice,
    stem: &Stem,
    skips_hash: bool,
    reporter: &mut Reporter,
) -> anyhow::Result<Backup> {
    let path = match choice {
        Choice::Path(text) => {
            let path = PathBuf::from(text);
            if path.is_dir() { path.join(newest_in(&path, stem)?) } else { path }
        }
        Choice::S3 { bucket, prefix } => download(bucket, prefix, stem, reporter).await?,
    };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let origin = stem.parse(name);
    let (bytes, sha256) = verify(&path, origin.is_some(), skips_hash).await?;
    Ok(Backup { path, bytes, sha256, origin })
}

fn newest_in(folder: &Path, stem: &Stem) -> anyhow::Result<String> {
    let failed = || format!("failed to list {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(failed)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = stem.newest_first(names).into_iter().next();
    newest.with_context(|| format!("{} has no backup {stem}REVISION_TIME.db", folder.display()))
}

/// Copies the newest backup to the current directory, unless it is there already.
async fn download(
    bucket: &str,
    prefix: &str,
    stem: &Stem,
    reporter: &mut Reporter,
) -> anyhow::Result<PathBuf> {
    let store = bucket_client(bucket, DOWNLOAD_LIMIT)?;
    let place = format!("s3://{bucket}/{prefix}");
    let chosen = Key::parse(prefix).with_context(|| format!("{prefix} is no prefix of keys"))?;
    let key = if prefix.ends_with(SUFFIX) {
        chosen
    } else {
        let listed = store.list(Some(&chosen)).map_ok(|object| object.location);
        let listed: Vec<Key> = listed
            .try_collect()
            .await
            .map_err(|error| described(&format!("failed to list {place}"), &error))?;
        let is_here = |key: &&Key| key.parts().count() == chosen.parts().count() + 1;
        let names = listed.iter().filter(is_here).filter_map(|key| Some(key.filename()?.to_owned()));
        let newest = stem.newest_first(names).into_iter().next();
        chosen.join(newest.with_context(|| format!("{place} has no backup {stem}REVISION_TIME.db"))?)
    };
    let failed =
        |error: &object_store::Error| described(&format!("failed to read s3://{bucket}/{key}"), error);
    let size = store.head(&key).await.map_err(|error| failed(&error))?.size;
    let path = PathBuf::from(key.filename().unwrap_or_default());
    // A name with a time is that of one backup.
    let is_unique = stem.parse(key.filename().unwrap_or_default()).is_some();
    if is_unique && path.metadata().is_ok_and(|file| file.len() == size) {
        return Ok(path);
    }
    let destination = Destination::File(path.clone());
    destination.check(size, true)?;
    reporter
        .progress(&format!("s3://{bucket}/{key} ({}) is copied to the current directory", mebibytes(size)));
    let mut pieces = store.get(&key).await.map_err(|error| failed(&error))?.into_stream();
    let mut writer = destination.open().await?;
    loop {
        match pieces.try_next().await {
            Ok(Some(piece)) => writer.write(&piece).await?,
            Ok(None) => break,
            Err(error) => {
                writer.discard().await;
                return Err(failed(&error));
            }
        }
    }
    writer.finish(size).await?;
    Ok(path)
}

/// Returns the size and the SHA-256 of a backup.
async fn verify(path: &Path, is_named: bool, skips_hash: bool) -> anyhow::Result<(u64, String)> {
    let failed = || format!("failed to read {}", path.display());
    let mut file = File::open(path).await.with_context(failed)?;
    let (mut checksum, mut piece) = (Checksum::new(), vec![0; PIECE_BYTES]);
    loop {
        let count = file.read(&mut piece).await.with_context(failed)?;
        if count == 0 {
            break;
        }
        checksum.add(piece.get(..count).unwrap_or_default());
    }
    let bytes = checksum.bytes();
    ensure!(bytes > 0, "{} is empty", path.display());
    if skips_hash {
        return Ok((bytes, checksum.sha256()));
    }
    match checksum.verify() {
        Ok(verified) => Ok((verified.bytes, verified.sha256)),
        Err(_) if is_named => {
            bail!("{} is damaged: the SHA-256 at its end does not match. Use an older backup", path.display())
        }
        Err(_) => bail!(
            "{} is no whole backup: the SHA-256 at its end does not match. A database copied from a volume (member/snap/db) has none: \
             --skip-hash-check",
            path.display()
        ),
    }
}

// === impl Backup ===

impl fmt::Display for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, sha256 {})", self.path.display(), mebibytes(self.bytes), self.sha256)
    }
}

#[cfg(test)]
mod tests {
    use ring::digest::{SHA256, digest};

    use super::*;

    fn backup(content: u8) -> Vec<u8> {
        let database = vec![content; 1024];
        let hash = digest(&SHA256, &database);
        [database.as_slice(), hash.as_ref()].concat()
    }

    async fn found(place: &Path, skips_hash: bool) -> anyhow::Result<Backup> {
        let choice = place.to_str().unwrap().parse().map_err(anyhow::Error::msg)?;
        find(&choice, &Stem::new("prod", "etcd"), skips_hash, &mut Reporter::silent()).await
    }

    #[tokio::test]
    async fn newest_backup_of_the_cluster_is_verified() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, content) in [
            ("prod_etcd_9_20261130T030000Z.db", 1),
            ("prod_etcd_8_20261201T030000Z.db", 2),
            ("prod_other_9_20261202T030000Z.db", 3),
        ] {
            std::fs::write(path(name), backup(content)).unwrap();
        }
        let newest = found(folder.path(), false).await.unwrap();
        assert_eq!(newest.path, path("prod_etcd_8_20261201T030000Z.db"));
        assert_eq!((newest.bytes, newest.origin), (1056, Some((String::from("20261201T030000Z"), 8))));
        std::fs::write(path("mine"), backup(4)).unwrap();
        assert_eq!(found(&path("mine"), false).await.unwrap().origin, None);
        let mut changed = backup(4);
        changed[7] ^= 1;
        std::fs::write(path("mine"), changed).unwrap();
        let error = found(&path("mine"), false).await.err().unwrap().to_string();
        assert!(error.contains("--skip-hash-check"), "{error}");
        assert_eq!(found(&path("mine"), true).await.unwrap().bytes, 1056);
        let empty = tempfile::tempdir().unwrap();
        let error = found(empty.path(), false).await.err().unwrap().to_string();
        assert!(error.ends_with("has no backup prod_etcd_REVISION_TIME.db"), "{error}");
    }
}
