//! A Secret of the certificates that was made immutable.

use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::certificates::self_managed::{Callers, SECOND_SECRET, SECRET, Setup};
use test_support::wait::wait_until;

/// The lifetime of the certificates. A renewal starts after two thirds.
const LIFETIME: Duration = Duration::from_secs(60);

/// The longest time until a renewed certificate is stored, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// An immutable Secret is named once, and the renewal continues in a second Secret, without a failed call
/// and without an empty bundle, beyond the expiry of the immutable one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for more than a minute; scripts/prove tests runs it"]
async fn immutable_secret_does_not_stop_renewals() {
    let setup = Setup::start(LIFETIME).await;
    let callers = Callers::start(&setup).await;
    let first = setup.secret("tls.crt").await.unwrap();
    let immutable = Patch::Merge(json!({"immutable": true}));
    setup.secrets().patch(SECRET, &PatchParams::default(), &immutable).await.unwrap();

    let second = async || setup.value_of(SECOND_SECRET, "tls.crt").await;
    let mut stored = vec![first.clone()];
    // Two further certificates: the first one expires meanwhile.
    wait_until("renewed certificates are stored in the second Secret", TIMEOUT, async || {
        assert!(setup.bundle().await.unwrap().contains("BEGIN CERTIFICATE"));
        stored.extend(second().await.filter(|certificate| !stored.contains(certificate)));
        stored.len() == 3
    })
    .await;
    assert_eq!(setup.secret("tls.crt").await, Some(first));
    let note = "Secret etcd-guard-certificates is immutable";
    assert_eq!(setup.manager.count_lines(note), 1);
    assert_eq!(setup.manager.count_lines("certificate step failed"), 0);
    let events: Api<Event> = Api::namespaced(setup.client.clone(), "etcd-guard");
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let is_named = |event: &&Event| event.note.as_deref().is_some_and(|text| text.contains(note));
    assert_eq!(events.iter().filter(is_named).count(), 1, "{events:#?}");

    // The remedy: the Secret is deleted. Nodes that mounted it still have its last content.
    setup.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    wait_until("both Secrets have the same certificate", TIMEOUT, async || {
        let first = setup.secret("tls.crt").await;
        first.is_some() && first == second().await
    })
    .await;
    callers.end().await;
}
