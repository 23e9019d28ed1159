//! Certificates from files that have ended, or are not valid yet.

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

/// Puts a certificate there that is valid from the beginning of the one year to the beginning of the other.
fn make_valid(files: &Path, from: i32, to: i32) {
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("localhost")]).unwrap();
    leaf.not_before = rcgen::date_time_ymd(from, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(to, 1, 1);
    fs::write(files.join("tls.crt"), leaf.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(files.join("tls.key"), key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_certificate_is_not_valid_now_is_not_ready_until_it_has_one_that_is() {
    let control_plane = ControlPlane::start(&[]);
    let files = control_plane.dir.join("guard");
    let guard = GuardProcess::start(&control_plane.admin_kubeconfig(), &files).await;
    for (from, to) in [(2019, 2020), (4000, 4001)] {
        make_valid(&files, from, to);
        until(&format!("it is not ready with that of {from}"), NOTICED, async || {
            let said = http_client::get(guard.http(), "/readyz").await.unwrap();
            said.status == 500
                && said.body.contains("no certificate is served that the apiserver would accept")
        })
        .await;
        make_certificate(&files);
        guard.wait_until_ready().await;
    }
}
