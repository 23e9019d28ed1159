//! Records a stress test for the comparison with the model of the reservation protocol, if the environment requests it.
//!
//! The changes come from the etcd member of the API server, and not from a watch of the API server: a watch that is interrupted by
//! a restart of the API server reports several changes of an object as one. The API server stores the objects as JSON for this
//! purpose.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use etcd_client::{Client, EventType, WatchOptions};
use serde_json::Value;
use tokio::{task::JoinSet, time::sleep};

use test_support::protocol_trace::{self, Change, Kind, Members};

/// The namespace of the guard, with the records of all clusters.
const GUARD_NAMESPACE: &str = "etcd-guard";

/// Time for the watches to report the last changes.
const WATCH_LAG: Duration = Duration::from_secs(1);

/// Records changes and approvals.
pub(crate) struct Recorder {
    started: Instant,
    changes: Arc<Mutex<Vec<Change>>>,
    approvals: Mutex<Vec<(u64, String)>>,
    /// Tasks of the watches, which end when the recorder is dropped.
    watches: Mutex<JoinSet<()>>,
}

// === impl Recorder ===

impl Recorder {
    /// Starts to record the changes of the pods of a namespace and of the records. `store` is the URL of the API server's etcd.
    pub(crate) async fn start(store: &str, namespace: &str) -> Self {
        let (started, changes) = (Instant::now(), Arc::<Mutex<Vec<Change>>>::default());
        let mut watches = JoinSet::new();
        if protocol_trace::folder().is_some() {
            for (prefix, kind) in [
                (format!("/registry/pods/{namespace}/"), Kind::Pod),
                (format!("/registry/leases/{GUARD_NAMESPACE}/"), Kind::Lease),
            ] {
                let client = Client::connect([store], None).await.unwrap();
                watches.spawn(record(client, prefix, kind, started, Arc::clone(&changes)));
            }
        }
        Self { started, changes, approvals: Mutex::default(), watches: Mutex::new(watches) }
    }

    /// Records the approved deletion of a pod.
    pub(crate) fn approve(&self, uid: &str) {
        self.approvals.lock().unwrap().push((millis_since(self.started), uid.to_owned()));
    }

    /// Writes the trace.
    pub(crate) async fn finish(&self, name: &str, namespace: &str, voters: &[String]) {
        let Some(folder) = protocol_trace::folder() else { return };
        sleep(WATCH_LAG).await;
        assert!(self.watches.lock().unwrap().try_join_next().is_none(), "a watch has ended");
        let changes = self.changes.lock().unwrap().clone();
        let members =
            Members { namespace: namespace.to_owned(), voters: voters.to_vec(), learners: Vec::new() };
        let approvals = self.approvals.lock().unwrap().clone();
        protocol_trace::write(&folder, name, &protocol_trace::trace(&members, changes, &approvals));
    }
}

fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap()
}

/// Records the changes of all keys with a prefix, until the watch fails.
async fn record(
    mut client: Client,
    prefix: String,
    kind: Kind,
    started: Instant,
    changes: Arc<Mutex<Vec<Change>>>,
) {
    let mut stored: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
    let mut watch = client.watch(prefix, Some(WatchOptions::new().with_prefix())).await.unwrap();
    while let Ok(Some(response)) = watch.message().await {
        let millis = millis_since(started);
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            let is_deleted = event.event_type() == EventType::Delete;
            let object = if is_deleted {
                stored.remove(pair.key())
            } else {
                let object: Value = serde_json::from_slice(pair.value()).expect("an object in JSON");
                stored.insert(pair.key().to_vec(), object.clone());
                Some(object)
            };
            // An object that was created before the watch belongs to another test.
            let Some(object) = object else { continue };
            let version = u64::try_from(pair.mod_revision()).unwrap();
            changes.lock().unwrap().push(Change { millis, version, kind, is_deleted, object });
        }
    }
}
