//! Certificates from files that have ended.

use std::{fs, path::Path, time::Duration};

use rcgen::{CertificateParams, KeyPair};

use crate::support::{
    control_plane::ControlPlane,
    guard_process::{GuardProcess, make_certificate},
    http_client,
    wait::until,
};

/// Longest until a changed file, and what follows from it, is noticed next to compilers.
const NOTICED: Duration = Duration::from_secs(60);

fn let_end(files: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("localhost")]).unwrap();
    leaf.not_before = rcgen::date_time_ymd(2019, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(2020, 1, 1);
    fs::write(files.join("tls.crt"), leaf.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(files.join("tls.key"), key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_certificate_has_ended_is_not_ready_until_it_has_a_new_one() {
    let control_plane = ControlPlane::start(&[]);
    let files = control_plane.dir.join("guard");
    let guard = GuardProcess::start(&control_plane.admin_kubeconfig(), &files).await;
    let_end(&files);
    until("it is not ready", NOTICED, async || {
        let said = http_client::get(guard.http(), "/readyz").await.unwrap();
        said.status == 503 && said.body.contains("no certificate is served that the apiserver would accept")
    })
    .await;
    make_certificate(&files);
    guard.wait_until_ready().await;
}
