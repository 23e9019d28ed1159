//! The hash at the end of a backup, by which etcd lets everybody verify it.

use std::fmt::Write as _;

use anyhow::bail;
use ring::digest::{Context, Digest, SHA256, SHA256_OUTPUT_LEN};

/// The smallest page of a database. The size of each database is a multiple, as `etcdutl` requires it as well.
const PAGE_BYTES: u64 = 512;

/// Verifies a stream of bytes: a database, and then its SHA-256.
pub(crate) struct Checksum {
    /// The hash of the bytes before the tail.
    database: Context,
    /// The hash of all bytes.
    file: Context,
    /// The last bytes, at most the length of a hash.
    tail: Vec<u8>,
    bytes: u64,
}

/// A verified backup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// The size of the file.
    pub(crate) bytes: u64,
    /// The SHA-256 of the file, as `sha256sum` prints it.
    pub(crate) sha256: String,
}

fn hexadecimal(hash: &[u8]) -> String {
    let mut text = String::new();
    for byte in hash {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

// === impl Checksum ===

impl Checksum {
    pub(crate) fn new() -> Self {
        Self { database: Context::new(&SHA256), file: Context::new(&SHA256), tail: Vec::new(), bytes: 0 }
    }

    /// Adds the next bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.file.update(bytes);
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.tail.extend_from_slice(bytes);
        let complete = self.tail.len().saturating_sub(SHA256_OUTPUT_LEN);
        self.database.update(self.tail.drain(..complete).as_slice());
    }

    /// The number of bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the SHA-256 of all bytes.
    pub(crate) fn sha256(self) -> String {
        hexadecimal(self.file.finish().as_ref())
    }

    /// Verifies the hash at the end.
    pub(crate) fn verify(self) -> anyhow::Result<Verified> {
        let Self { database, file, tail, bytes } = self;
        let database: Digest = database.finish();
        let hash_bytes = u64::try_from(SHA256_OUTPUT_LEN).unwrap_or_default();
        if bytes <= hash_bytes || bytes % PAGE_BYTES != hash_bytes {
            bail!("the transfer ended after {bytes} bytes, which are no whole database with its hash");
        }
        if database.as_ref() != tail {
            bail!(
                "the SHA-256 of the received database is {}, but the member sent {}: the data was changed on its way",
                hexadecimal(database.as_ref()),
                hexadecimal(&tail)
            );
        }
        Ok(Verified { bytes, sha256: hexadecimal(file.finish().as_ref()) })
    }
}

#[cfg(test)]
mod tests {
    use ring::digest::digest;

    use super::*;

    fn verify(pieces: &[&[u8]]) -> Result<Verified, String> {
        let mut checksum = Checksum::new();
        for piece in pieces {
            checksum.add(piece);
        }
        checksum.verify().map_err(|error| error.to_string())
    }

    #[test]
    fn only_a_whole_database_with_its_hash_is_verified() {
        let database = [7; 1024];
        let hash = digest(&SHA256, &database);
        let hash = hash.as_ref();
        let file = [&database[..], hash].concat();
        let sha256 = hexadecimal(digest(&SHA256, &file).as_ref());
        let expected = Ok(Verified { bytes: 1056, sha256 });
        assert_eq!(verify(&[&database, hash]), expected);
        assert_eq!(verify(&[&database[..1000], &database[1000..], &hash[..5], &hash[5..]]), expected);

        let mut changed = file.clone();
        changed[500] ^= 1;
        assert!(verify(&[&changed]).unwrap_err().contains("the data was changed on its way"));
        for cut in [&[][..], hash, &database, &file[..1055], &file[..700]] {
            assert!(verify(&[cut]).unwrap_err().contains("no whole database"), "{}", cut.len());
        }
    }
}
