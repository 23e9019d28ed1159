//! Properties that hold for every new pod and every valid configuration.

#![allow(clippy::expect_used, reason = "fuzzers detect violations by panics")]

use std::sync::OnceLock;

use serde_json::{Value, json, value::RawValue};

use super::{INJECTED, Injection, InjectionContext, Outcome, inject};
use crate::{
    config::{Config, Labels},
    json,
};

/// A configuration with every kind of section, and with names that pods are likely to use.
const FULL_CONFIG: &str = include_str!("../../fuzz/seeds/config/everything.yaml");

/// Injects into a pod in JSON, with a configuration that has every kind of section. If the input has an even length,
/// the namespace requests injection. The patch must lead from the pod to the intended pod and preserve all values of
/// the user, a second pass must change nothing, and the same pod must result in the same bytes.
///
/// # Panics
///
/// If a property is violated.
pub fn patch(body: &[u8]) {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let Ok(raw) = serde_json::from_slice::<&RawValue>(body) else { return };
    let config = CONFIG.get_or_init(full_config);
    let opted_in = [("sidecar-injector", "enabled")];
    assert_patches(raw, if body.len().is_multiple_of(2) { &opted_in } else { &[] }, config);
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
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string();
        let raw = serde_json::from_str(&pod).expect("JSON");
        let failed = assert_patches(raw, &[("sidecar-injector", "enabled")], config);
        assert!(!failed, "{pod}");
    }
}

/// Asserts the properties of the patch. Returns whether the injection failed.
fn assert_patches(raw: &RawValue, namespace: &[(&str, &str)], config: &Config) -> bool {
    let labels: Labels = namespace.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let context =
        InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    let injected = |raw: &RawValue| {
        let pod = json::read_object(raw, &config.sidecars.variables)?;
        let Injection { patch, notes, .. } = inject(pod, &context, config).ok()?;
        Some((patch, notes))
    };
    let Some((patch, notes)) = injected(raw) else { return false };
    let Some(before) = representable(raw) else { return false };
    for warning in notes.iter().filter_map(|note| note.warning.as_ref()) {
        assert!(!warning.contains(char::is_control), "{warning:?}");
    }
    let whole = inject((&before).into(), &context, config).expect("no denial, as for the trimmed pod");
    assert_eq!(whole.patch, patch, "the trimmed parts of {before} affect the patch");
    let mut after = before.clone();
    json_patch::patch(&mut after, &patch.operations()).expect("a patch that applies");
    let expected = whole.pod.as_ref().map_or_else(|| before.clone(), Value::from);
    assert_eq!(after, expected);
    assert_eq!(preserves(&after, &before, ""), Ok(()));
    let again = serde_json::value::to_raw_value(&after).expect("JSON");
    let (second, _) = injected(&again).expect("a changed pod is readable");
    assert!(second.is_empty(), "a second pass over {after}: {:?}", second.operations());
    assert_eq!(injected(raw).map(|(patch, _)| patch.into_json()), Some(patch.into_json()));
    notes.iter().any(|note| matches!(note.reason.outcome(), Outcome::Failed))
}

/// Parses a pod and returns it if its numbers survive a round trip. Other pods are skipped: out-of-range numbers in
/// unread parts are not detected, and imprecise numbers change when they are parsed again. Numbers in real pods are
/// small integers.
fn representable(raw: &RawValue) -> Option<Value> {
    let pod: Value = serde_json::from_str(raw.get()).ok()?;
    let again: Value = serde_json::from_str(&pod.to_string()).ok()?;
    (again == pod).then_some(pod)
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
