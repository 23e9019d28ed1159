//! Two replicas with different configuration files that mutate the same pod, while a file propagates.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{config, inject_with, pod};
use crate::{config::Config, pods::INJECTED};

/// The parts of one version of a template.
#[derive(Clone, Debug, PartialEq)]
struct Parts {
    container: Option<&'static str>,
    variable: Option<&'static str>,
    volume: Option<&'static str>,
    label: Option<&'static str>,
    version: &'static str,
}

fn parts() -> impl Strategy<Value = Parts> {
    let images = vec![None, Some("agent:1"), Some("agent:2")];
    let values = || vec![None, Some("1"), Some("2")];
    (select(images), select(values()), select(values()), select(values()), select(vec!["", "2"])).prop_map(
        |(container, variable, volume, label, version)| Parts { container, variable, volume, label, version },
    )
}

// === impl Parts ===

impl Parts {
    fn config(&self) -> Config {
        let mut template = json!({"name": "agent", "labels": {"always": "yes"}});
        if let Some(image) = self.container {
            template["containers"] = json!([{"name": "agent", "image": image}]);
        }
        if let Some(value) = self.variable {
            template["appContainers"]["env"] = json!([{"name": "A", "value": value}]);
        }
        if let Some(secret) = self.volume {
            template["volumes"] = json!([{"name": "v", "secret": {"secretName": secret}}]);
        }
        if let Some(value) = self.label {
            template["labels"]["l"] = json!(value);
        }
        template["match"] = json!({"podSelector": {}});
        let mut templates = vec![template];
        if !self.version.is_empty() {
            // One of the templates of a name has no version. The selector selects the other one.
            templates[0]["version"] = json!(self.version);
            templates.push(json!({"name": "agent", "labels": {"unused": "yes"}}));
        }
        config(&format!("sidecars: {}", json!({"templates": templates})))
    }

    /// Whether the pod has every part of this version.
    fn are_in(&self, pod: &Value) -> bool {
        let spec = &pod["spec"];
        let has = |list: &Value, wanted: Value| {
            list.as_array()
                .into_iter()
                .flatten()
                .any(|item| wanted.as_object().unwrap().iter().all(|(key, value)| &item[key] == value))
        };
        self.container
            .is_none_or(|image| has(&spec["initContainers"], json!({"name": "agent", "image": image})))
            && self
                .variable
                .is_none_or(|value| has(&spec["containers"][0]["env"], json!({"name": "A", "value": value})))
            && self
                .volume
                .is_none_or(|secret| has(&spec["volumes"], json!({"secret": {"secretName": secret}})))
            && self.label.is_none_or(|value| pod["metadata"]["labels"]["l"] == value)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The record never names a version alone of which a part is missing.
    #[test]
    fn record_names_no_incomplete_version(
        replicas in [parts(), parts()],
        calls in vec(0_usize..2, 1..5),
    ) {
        let configs = replicas.each_ref().map(Parts::config);
        let hashes = configs.each_ref().map(|config| config.sidecars.templates.iter()
            .find(|template| template.always.is_some()).unwrap().hash.clone());
        let mut pod = pod(json!({}));
        for call in calls {
            let injection = inject_with(&pod, &[], &configs[call]).unwrap();
            pod = injection.pod.unwrap_or(pod);
            let record = pod["metadata"]["annotations"][INJECTED].as_str().unwrap_or("{}");
            let record: Value = serde_json::from_str(record).unwrap();
            for recorded in record["templates"].as_object().into_iter().flatten().map(|(_, hash)| hash) {
                for (parts, hash) in replicas.iter().zip(&hashes) {
                    prop_assert!(recorded != hash || parts.are_in(&pod), "{recorded}: {parts:?} in {pod}");
                }
            }
            // The same replica changes nothing, also after the other one.
            let again = inject_with(&pod, &[], &configs[call]).unwrap();
            prop_assert!(again.is_empty(), "{:?} in {pod}", again.patch);
        }
    }
}
