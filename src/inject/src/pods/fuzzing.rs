//! Properties that hold for every new pod and every valid configuration.

#![allow(clippy::expect_used, reason = "fuzzers detect violations by panics")]

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{INJECTED, Injection, InjectionContext, Outcome, inject};
use crate::config::Config;
use etcd_guard_core::config::selector::Labels;

/// A configuration with every kind of section, and with names that pods are likely to use.
const FULL_CONFIG: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/config/everything.yaml"));

/// Injects into a pod in JSON, with a configuration that has every kind of section. If the input has an even length,
/// the namespace requests injection. The patch must lead from the pod to the intended pod and preserve all values of
/// the user, a second pass must change nothing, and the same pod must result in the same bytes.
///
/// # Panics
///
/// If a property is violated.
pub fn patch(body: &[u8]) {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let Some(pod) = representable(body) else { return };
    let config = CONFIG.get_or_init(full_config);
    let opted_in = [("sidecar-injector", "enabled")];
    assert_patches(&pod, if body.len().is_multiple_of(2) { &opted_in } else { &[] }, config);
}

pub(super) fn full_config() -> Config {
    Config::read(FULL_CONFIG).expect("a configuration")
}

/// Asserts that a valid configuration never fails for a pod that Kubernetes accepts.
pub(crate) fn assert_injects(config: &Config) {
    let requests = json!({"etcd-guard.io/inject": "lxcfs,agent", "sidecar-injector.lxcfs/inject": "true"});
    let container = json!({"name": "web", "image": "web:1", "resources": {"limits": {"cpu": "1"}}});
    let spec = json!({"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]});
    for metadata in [json!({"generateName": "web-"}), json!({"name": "web", "annotations": requests})] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        let failed = assert_patches(&pod, &[("sidecar-injector", "enabled")], config);
        assert!(!failed, "{pod}");
    }
}

/// Asserts the properties of the patch. Returns whether the injection failed.
fn assert_patches(before: &Value, namespace: &[(&str, &str)], config: &Config) -> bool {
    let labels: Labels = namespace.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let context =
        InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    let Ok(Injection { pod, patch, notes, .. }) = inject(before.clone(), &context, config) else {
        return false;
    };
    for warning in notes.iter().filter_map(|note| note.warning.as_ref()) {
        assert!(!warning.contains(char::is_control), "{warning:?}");
    }
    let sent = serde_json::to_vec(&patch).expect("a patch in JSON");
    let sent: json_patch::Patch = serde_json::from_slice(&sent).expect("a patch");
    let mut after = before.clone();
    json_patch::patch(&mut after, &sent).expect("a patch that applies");
    assert_eq!(&after, pod.as_ref().unwrap_or(before));
    assert_eq!(preserves(&after, before, ""), Ok(()));
    let second = inject(after.clone(), &context, config).expect("no denial of a changed pod");
    assert!(second.is_empty(), "a second pass over {after}: {}", second.patch);
    let again = inject(before.clone(), &context, config).expect("no denial of the same pod");
    assert_eq!(again.patch, patch);
    notes.iter().any(|note| matches!(note.reason.outcome(), Outcome::Failed))
}

/// Parses a pod and returns it if its numbers survive a round trip: imprecise numbers change when they are parsed again.
/// Numbers in real pods are small integers.
fn representable(body: &[u8]) -> Option<Value> {
    let pod: Value = serde_json::from_slice(body).ok()?;
    let again: Value = serde_json::from_str(&pod.to_string()).ok()?;
    (again == pod && pod.is_object()).then_some(pod)
}

/// Checks that `after` contains all of `before`, unchanged and in order.
pub(super) fn preserves(after: &Value, before: &Value, path: &str) -> Result<(), String> {
    let lost = || Err(format!("{path}: {before} became {after}"));
    match (after, before) {
        (_, Value::Null) => Ok(()),
        (Value::Object(after), Value::Object(before)) => before.iter().try_for_each(|(key, before)| {
            let after = after.get(key).ok_or_else(|| format!("{path}/{key} is missing"))?;
            // Annotations that this program owns or extends.
            let is_record = key == INJECTED;
            let extended = key.ends_with("safe-to-evict-local-volumes")
                && after.as_str().is_some_and(|text| text.starts_with(before.as_str().unwrap_or_default()));
            // The only field in which the larger value takes precedence.
            let is_longer = key == "terminationGracePeriodSeconds" && after.as_u64() >= before.as_u64();
            if is_record || extended || is_longer {
                Ok(())
            } else {
                preserves(after, before, &format!("{path}/{key}"))
            }
        }),
        (Value::Array(after), Value::Array(before)) => {
            let mut rest = after.iter();
            let is_preserved = |item: &Value| {
                let mut found = rest.by_ref().filter(|candidate| preserves(candidate, item, path).is_ok());
                found.next().is_some()
            };
            if before.iter().all(is_preserved) { Ok(()) } else { lost() }
        }
        (after, before) => {
            if after == before {
                Ok(())
            } else {
                lost()
            }
        }
    }
}
