//! What any pod must come to that is created, and any configuration that says what pods get.

#![allow(clippy::expect_used, reason = "a fuzzer is told by a panic")]

use std::sync::OnceLock;

use serde_json::{Value, json, value::RawValue};

use super::{INJECTED, Injection, Surroundings, inject, reason::Result as Outcome};
use crate::{
    config::{Config, Labels},
    json,
};

/// All that a configuration can do at once, with names that pods are likely to have already.
const EVERYTHING: &str = include_str!("../../fuzz/seeds/config/everything.yaml");

/// A pod in JSON, under a configuration that does all there is; of even length, in a namespace that asks for it. The patch
/// makes of the pod as it came what was meant, all that was the user's is there unchanged, a second pass finds nothing to
/// do, and the same pod gets the same bytes.
///
/// # Panics
///
/// Where that does not hold.
pub fn patch(body: &[u8]) {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let Ok(raw) = serde_json::from_slice::<&RawValue>(body) else { return };
    let config = CONFIG.get_or_init(everything);
    let opted_in = [("sidecar-injector", "enabled")];
    assert_patches(raw, if body.len().is_multiple_of(2) { &opted_in } else { &[] }, config);
}

pub(super) fn everything() -> Config {
    Config::read(EVERYTHING).expect("a configuration")
}

/// A configuration without a mistake never fails a pod that Kubernetes would have.
pub(crate) fn assert_injects(config: &Config) {
    let asks = json!({"etcd-guard.io/inject": "lxcfs,agent", "sidecar-injector.lxcfs/inject": "true"});
    let container = json!({"name": "web", "image": "web:1", "resources": {"limits": {"cpu": "1"}}});
    let spec = json!({"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]});
    for metadata in [json!({"generateName": "web-"}), json!({"name": "web", "annotations": asks})] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string();
        let raw = serde_json::from_str(&pod).expect("JSON");
        let failed = assert_patches(raw, &[("sidecar-injector", "enabled")], config);
        assert!(!failed, "{pod}");
    }
}

/// Whether nothing was done because of an error.
fn assert_patches(raw: &RawValue, namespace: &[(&str, &str)], config: &Config) -> bool {
    let labels: Labels = namespace.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let surroundings =
        Surroundings { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    let injected = |raw: &RawValue| {
        let pod = json::read(raw, &config.sidecars.variables)?;
        let Injection { patch, notes, .. } = inject(pod, &surroundings, config).ok()?;
        Some((patch, notes))
    };
    let Some((patch, notes)) = injected(raw) else { return false };
    let Some(before) = settled(raw) else { return false };
    for warning in notes.iter().filter_map(|it| it.warning.as_ref()) {
        assert!(!warning.contains(char::is_control), "{warning:?}");
    }
    let whole = inject((&before).into(), &surroundings, config).expect("no denial, as a moment ago");
    assert_eq!(whole.patch, patch, "what is left out of {before} counts");
    let mut after = before.clone();
    json_patch::patch(&mut after, &patch.operations()).expect("a patch that applies");
    let meant = whole.pod.as_ref().map_or_else(|| before.clone(), Value::from);
    assert_eq!(after, meant);
    assert_eq!(keeps(&after, &before, ""), Ok(()));
    let again = serde_json::value::to_raw_value(&after).expect("JSON");
    let (second, _) = injected(&again).expect("what was changed is read again");
    assert!(second.is_empty(), "a second pass over {after}: {:?}", second.operations());
    assert_eq!(injected(raw).map(|(patch, _)| patch.into_json()), Some(patch.into_json()));
    notes.iter().any(|it| matches!(it.reason.result(), Outcome::Failed))
}

/// A pod whose numbers can be told from what is written of them: none is out of range, which where nobody looks nobody notices,
/// and none is another one when it is read again. A number in a pod of Kubernetes is a small integer.
fn settled(raw: &RawValue) -> Option<Value> {
    let pod: Value = serde_json::from_str(raw.get()).ok()?;
    let again: Value = serde_json::from_str(&pod.to_string()).ok()?;
    (again == pod).then_some(pod)
}

/// Whether all of `before` is in `after`, unchanged and in order.
pub(super) fn keeps(after: &Value, before: &Value, place: &str) -> Result<(), String> {
    let lost = || Err(format!("{place}: {before} became {after}"));
    match (after, before) {
        (_, Value::Null) => Ok(()),
        (Value::Object(after), Value::Object(before)) => before.iter().try_for_each(|(key, before)| {
            let after = after.get(key).ok_or_else(|| format!("{place}/{key} is gone"))?;
            // Ours, or only longer than it was.
            let is_ours = key == INJECTED;
            let extended = key.ends_with("safe-to-evict-local-volumes")
                && after.as_str().is_some_and(|it| it.starts_with(before.as_str().unwrap_or_default()));
            // The one field of which the larger value counts.
            let longer = key == "terminationGracePeriodSeconds" && after.as_u64() >= before.as_u64();
            if is_ours || extended || longer {
                Ok(())
            } else {
                keeps(after, before, &format!("{place}/{key}"))
            }
        }),
        (Value::Array(after), Value::Array(before)) => {
            let mut rest = after.iter();
            let kept = |item: &Value| {
                let mut found = rest.by_ref().filter(|it| keeps(it, item, place).is_ok());
                found.next().is_some()
            };
            if before.iter().all(kept) { Ok(()) } else { lost() }
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
