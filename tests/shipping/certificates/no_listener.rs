//! The running process of the Deployment that keeps the certificates.

use std::time::Duration;

use crate::certificates::self_managed::Setup;
use test_support::processes::sockets::listening_addresses;

/// The lifetime of the certificates.
const LIFETIME: Duration = Duration::from_secs(3600);

/// The account that can change webhook configurations is that of a process without a listener.
#[tokio::test(flavor = "multi_thread")]
async fn running_certificate_manager_does_not_listen() {
    let setup = Setup::start(LIFETIME).await;
    // The servers listen at two ports each: the webhook, and health with metrics.
    for replica in &setup.replicas {
        assert_eq!(listening_addresses(replica.id()).len(), 2);
    }
    assert_eq!(listening_addresses(setup.manager.id()), [""; 0]);
    assert!(setup.secret("tls.crt").await.is_some(), "the process works");
}
