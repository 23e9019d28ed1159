//! Certificates from files that have expired, or are not valid yet.

use std::{fs, path::Path, time::Duration};

use rcgen::{CertificateParams, KeyPair};

use test_support::{
    guard::process::{GuardProcess, make_certificate},
    http_client,
    kubernetes::control_plane::ControlPlane,
    wait::wait_until,
};

/// The longest time until a changed file takes effect, on a busy machine.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a certificate that is valid from the beginning of one year to the beginning of another.
fn write_valid_certificate(files: &Path, from: i32, to: i32) {
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("localhost")]).unwrap();
    leaf.not_before = rcgen::date_time_ymd(from, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(to, 1, 1);
    fs::write(files.join("tls.crt"), leaf.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(files.join("tls.key"), key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_with_invalid_certificate_is_not_ready() {
    let control_plane = ControlPlane::start(&[]);
    let files = control_plane.dir.join("guard");
    let guard = GuardProcess::start(&control_plane.admin_kubeconfig(), &files).await;
    for (from, to) in [(2019, 2020), (4000, 4001)] {
        write_valid_certificate(&files, from, to);
        wait_until(
            &format!("the guard is not ready with the certificate of {from}"),
            RELOAD_TIMEOUT,
            async || {
                let output = http_client::get(guard.http(), "/readyz").await.unwrap();
                output.status == 500
                    && output.body.contains("no certificate is served that the API server would accept")
            },
        )
        .await;
        make_certificate(&files);
        guard.wait_until_ready().await;
    }
}
