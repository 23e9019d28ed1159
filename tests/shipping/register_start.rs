//! The beginning of a guard that applies its own configurations: where nothing is, and after an older release.

use std::{fs, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    path_of,
    register_end::free,
    scripts::ca_of,
    support::{control_plane::ControlPlane, self_managed_guard::SelfManagedGuard, wait::until},
};

const CONFIGURATION: &str = "validatingwebhookconfiguration/etcd-guard";

/// Longest that the guard may take for anything, next to compilers.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_missing_is_told_and_of_an_older_release_only_the_ca_stays_that_is_of_use() {
    let control_plane = ControlPlane::start(&[]);
    let kubectl = control_plane.kubectl();
    let (ended, living) = (ca_of(2019, 2020), ca_of(2019, 4000));
    register_older_release(&control_plane, &format!("{ended}{living}"));
    let (address, url) = free();
    let guard = SelfManagedGuard::launch(&control_plane.admin_kubeconfig(), address, &["--register", &url]);
    until("it says what is missing", LIMIT, async || {
        guard.has_logged("keeping the certificate failed")
            && guard.has_logged(r#"namespaces \"etcd-guard\" not found"#)
    })
    .await;

    kubectl.must(&["create", "namespace", "etcd-guard"]);
    guard.wait_until_ready().await;
    let names = kubectl.must(&["get", CONFIGURATION, "-o", "jsonpath={.webhooks[*].name}"]).stdout;
    assert_eq!(names, "guard.etcd-guard.io eviction.guard.etcd-guard.io intent.guard.etcd-guard.io");
    // A replica of that release may still serve what the living one signed.
    let bundles =
        kubectl.must(&["get", CONFIGURATION, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"]);
    for bundle in bundles.stdout.split(' ') {
        let bundle = String::from_utf8(STANDARD.decode(bundle).unwrap()).unwrap();
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "{bundle}");
        assert!(bundle.contains(living.lines().nth(2).unwrap()), "{bundle}");
    }
}

/// Leaves behind what a release would that had one entry more: applied once, its bundle of these CAs written afterwards.
fn register_older_release(control_plane: &ControlPlane, cas: &str) {
    let shipped = fs::read_to_string(path_of("deploy/base/webhooks.yaml")).unwrap();
    let mut object: Value = serde_saphyr::from_str(&shipped).unwrap();
    let entries = object["webhooks"].as_array_mut().unwrap();
    let mut former = entries[0].clone();
    former["name"] = json!("former.guard.etcd-guard.io");
    // Last: how it is reached is written by its number below.
    entries.push(former);
    let file = control_plane.dir.join("former.json");
    fs::write(&file, object.to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    let file = file.to_string_lossy();
    kubectl.must(&["apply", "--server-side", "--field-manager=etcd-guard", "-f", &file]);
    let cas = STANDARD.encode(cas);
    let bundle = |entry| json!({"op": "add", "path": format!("/webhooks/{entry}/clientConfig/caBundle"), "value": cas});
    let patch = Value::from((0..4).map(bundle).collect::<Vec<_>>()).to_string();
    kubectl.must(&["patch", CONFIGURATION, "--field-manager=etcd-guard", "--type=json", "-p", &patch]);
}
