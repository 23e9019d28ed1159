//! The hash of a template's content.

use std::collections::BTreeMap;

use super::super::Config;

#[test]
fn changes_hash_with_every_setting() {
    let parts = [
        "",
        "native: false",
        "position: first",
        "onConflict: skip",
        "skipHostNetwork: true",
        "externalVolumes: [v]",
        "appContainers: {only: [web]}",
        "appContainers: {except: [web]}",
        "appContainers: {env: [{name: A}]}",
        "shareVolumes: true",
        "overrides: {image: true}",
        "transferEnv: [{names: [A]}]",
        "volumes: [{name: v}]",
        "labels: {a: b}",
        "annotations: {a: b}",
        "tolerations: [{operator: Exists}]",
        "terminationGracePeriodSeconds: 60",
    ];
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for part in parts {
        let comma = if part.is_empty() { "" } else { "," };
        let text = format!(
            "apiVersion: etcd-guard.io/v1alpha1\nsidecars: {{templates: [{{name: a{comma} {part}, containers: [{{name: a, image: i}}]}}]}}"
        );
        let config = Config::read(&text).unwrap_or_else(|diagnostics| panic!("{part}: {diagnostics:#?}"));
        let hash = config.sidecars.templates[0].hash.clone();
        if let Some(other) = seen.insert(hash, part) {
            panic!("{part:?} has the hash of {other:?}");
        }
    }
}
