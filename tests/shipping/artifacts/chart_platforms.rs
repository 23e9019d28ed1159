//! What the chart renders on each platform, with the values in `deploy/chart/etcd-guard/ci`. The files in `tests/data/chart` contain the
//! whole of a plain installation, and the objects of each platform that differ from it.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{helm_template, identity, objects, project_path};

/// Writes the files instead of comparing them.
const UPDATE: &str = "UPDATE_CHART_PLATFORMS";

/// Flags of a platform besides its file of values.
fn flags_of(platform: &str) -> Vec<String> {
    match platform {
        "openshift" => vec![String::from("--api-versions=security.openshift.io/v1")],
        _ => Vec::new(),
    }
}

/// Returns the objects of the chart with the values of a platform.
fn rendered(platform: &str, values: &Path) -> Vec<Value> {
    let mut flags = flags_of(platform);
    flags.push(format!("--values={}", values.display()));
    objects(&helm_template(&flags.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Compares the objects with the file of the platform.
fn assert_golden(platform: &str, objects: &[&Value]) {
    let file = project_path("tests/data/chart").join(format!("{platform}.json"));
    let text = serde_json::to_string_pretty(objects).unwrap() + "\n";
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&file, text).unwrap();
        return;
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        text == expected,
        "{} differs: run this test with {UPDATE}=1, and review the change",
        file.display()
    );
}

#[test]
fn every_platform_renders_its_objects() {
    let plain = objects(&helm_template(&[]));
    assert_golden("plain", &plain.iter().collect::<Vec<_>>());
    let mut platforms = 0;
    for entry in fs::read_dir(project_path("deploy/chart/etcd-guard/ci")).unwrap() {
        let values = entry.unwrap().path();
        let name = values.file_name().unwrap().to_str().unwrap();
        let platform = name.strip_suffix("-values.yaml").unwrap();
        let all = rendered(platform, &values);
        let changed: Vec<&Value> = all.iter().filter(|object| !plain.contains(object)).collect();
        assert!(!changed.is_empty(), "{platform} renders the objects of a plain installation");
        assert_golden(platform, &changed);
        platforms += 1;
    }
    assert_eq!(platforms, 4);
}

/// `OpenShift` rejects pods that name a user outside of the range of their namespace.
#[test]
fn openshift_assigns_users() {
    let values = project_path("deploy/chart/etcd-guard/ci/openshift-values.yaml");
    let mut pods = 0;
    for object in rendered("openshift", &values) {
        let context = &object["spec"]["template"]["spec"]["securityContext"];
        if let Some(context) = context.as_object() {
            assert!(
                context.keys().all(|key| key == "runAsNonRoot" || key == "seccompProfile"),
                "{}",
                identity(&object)
            );
            pods += 1;
        }
    }
    assert_eq!(pods, 3, "the servers, the certificates, and the Job that deletes the configurations");
}
