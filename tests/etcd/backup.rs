//! The database of members as a stream, over each kind of connection.

use std::{sync::Arc, time::Duration};

use etcd_guard_core::etcd::{error::MemberError, member::Scheme};
use etcd_guard_etcd::{BackupSource, Dial, MemberStream, detect_scheme};
use ring::digest::{SHA256, digest};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, GUEST, Layout, PASSWORD};

const LIMIT: Duration = Duration::from_secs(60);

/// Connects to the client port of a member.
fn dial(cluster: &Cluster, n: usize) -> Dial {
    let address = cluster.address(n).to_owned();
    Arc::new(move || {
        let address = address.clone();
        Box::pin(async move {
            let stream: Box<dyn MemberStream> = Box::new(TcpStream::connect((address.as_str(), 2379)).await?);
            Ok(stream)
        })
    })
}

/// Reads the database of a member, and returns its bytes without the hash, which is verified.
async fn read(cluster: &Cluster, n: usize) -> Result<Vec<u8>, MemberError> {
    let mut source = BackupSource::connect(&cluster.endpoint(n), dial(cluster, n), LIMIT).await?;
    let (status, revision) = source.status().await?;
    let (mut database, mut bytes, mut rest) = (source.database().await?, Vec::new(), u64::MAX);
    while let Some(piece) = database.next().await? {
        bytes.extend_from_slice(piece.bytes());
        rest = piece.remaining();
    }
    let hash = bytes.split_off(bytes.len() - SHA256.output_len());
    assert_eq!(digest(&SHA256, &bytes).as_ref(), hash);
    assert_eq!(rest, 0);
    assert!(status.database.bytes > 0 && revision > 1, "{status:?} {revision}");
    Ok(bytes)
}

async fn write(cluster: &Cluster) {
    cluster.client(0).await.put("marker", "of this backup", None).await.unwrap();
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

on_every_version! {
    async fn database_is_read_with_a_client_certificate_and_as_root(version) {
        let layout = Layout { version, members: 1, spare: 0, tls: true };
        let mut cluster = Cluster::start(layout).await;
        write(&cluster).await;
        assert!(contains(&read(&cluster, 0).await.unwrap(), "of this backup"));
        assert_eq!(detect_scheme(&dial(&cluster, 0)).await, Some(Scheme::Https));

        cluster.enable_auth().await;
        cluster.log_in_as(GUEST, PASSWORD);
        let refused = read(&cluster, 0).await.unwrap_err();
        assert!(matches!(refused, MemberError::CredentialsRejected(_)), "{refused:?}");
        cluster.log_in_as("root", PASSWORD);
        assert!(contains(&read(&cluster, 0).await.unwrap(), "of this backup"));
    }
}

#[tokio::test]
async fn database_is_read_without_tls_and_with_the_own_certificate_of_the_member() {
    let plain = Cluster::single_member("3.6").await;
    assert_eq!(detect_scheme(&dial(&plain, 0)).await, Some(Scheme::Http));
    let own = Cluster::start_with_own_certificates("3.6").await;
    for cluster in [&plain, &own] {
        let mut source = BackupSource::connect(&cluster.endpoint(0), dial(cluster, 0), LIMIT).await.unwrap();
        let mut database = source.database().await.unwrap();
        let mut bytes = 0;
        while let Some(piece) = database.next().await.unwrap() {
            bytes += piece.bytes().len();
        }
        assert!(bytes > 4096 && bytes % 512 == SHA256.output_len(), "{bytes}");
    }
}
