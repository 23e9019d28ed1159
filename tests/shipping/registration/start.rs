//! The start of a guard that applies its own configurations, without earlier objects and after an older release.

use std::{fs, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{artifacts::scripts::ca_valid_between, project_path, registration::end::free_address};
use test_support::{
    guard::self_managed::SelfManagedGuard, kubernetes::control_plane::ControlPlane, wait::wait_until,
};

const CONFIGURATION: &str = "validatingwebhookconfiguration/etcd-guard";

/// The longest time for each step, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn reports_missing_namespace_and_drops_unusable_old_ca() {
    let control_plane = ControlPlane::start(&[]);
    let kubectl = control_plane.kubectl();
    let (expired, valid) = (ca_valid_between(2019, 2020), ca_valid_between(2019, 4000));
    register_older_release(&control_plane, &format!("{expired}{valid}"));
    let (address, url) = free_address();
    let guard = SelfManagedGuard::launch(&control_plane.admin_kubeconfig(), address, &["--register", &url]);
    wait_until("the guard reports the missing namespace", TIMEOUT, async || {
        guard.has_logged("certificate step failed")
            && guard.has_logged(r#"namespaces \"etcd-guard\" not found"#)
    })
    .await;

    kubectl.run_checked(&["create", "namespace", "etcd-guard"]);
    guard.wait_until_ready().await;
    let names = kubectl.run_checked(&["get", CONFIGURATION, "-o", "jsonpath={.webhooks[*].name}"]).stdout;
    let entries =
        ["guard", "eviction.guard", "intent.guard", "resources.guard", "others.guard", "update.guard"];
    assert_eq!(names, entries.map(|entry| format!("{entry}.etcd-guard.io")).join(" "));
    // A replica of the older release may still serve a certificate of the valid CA.
    let bundles =
        kubectl.run_checked(&["get", CONFIGURATION, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"]);
    for bundle in bundles.stdout.split(' ') {
        let bundle = String::from_utf8(STANDARD.decode(bundle).unwrap()).unwrap();
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "{bundle}");
        assert!(bundle.contains(valid.lines().nth(2).unwrap()), "{bundle}");
    }
}

/// Creates the objects of an older release with one more webhook: applied once, with a bundle of these CAs that was
/// written later.
fn register_older_release(control_plane: &ControlPlane, cas: &str) {
    let shipped = fs::read_to_string(project_path("deploy/base/webhooks.yaml")).unwrap();
    let mut object: Value = serde_saphyr::from_str(&shipped).unwrap();
    let entries = object["webhooks"].as_array_mut().unwrap();
    let mut former = entries[0].clone();
    former["name"] = json!("former.guard.etcd-guard.io");
    // The last one, because the patch below refers to the webhooks by index.
    entries.push(former);
    let file = control_plane.dir.join("former.json");
    fs::write(&file, object.to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    let file = file.to_string_lossy();
    kubectl.run_checked(&["apply", "--server-side", "--field-manager=etcd-guard", "-f", &file]);
    let cas = STANDARD.encode(cas);
    let bundle = |entry| json!({"op": "add", "path": format!("/webhooks/{entry}/clientConfig/caBundle"), "value": cas});
    let patch = Value::from((0..6).map(bundle).collect::<Vec<_>>()).to_string();
    kubectl.run_checked(&["patch", CONFIGURATION, "--field-manager=etcd-guard", "--type=json", "-p", &patch]);
}
