//! Certificates in files: a new pair is served without a restart, an invalid one is not.

use std::{path::Path, process::Command, time::Duration};

use rcgen::{CertificateParams, KeyPair};

use crate::{Server, UNREACHABLE, deletion_review};
use test_support::{
    guard::process::{GuardProcess, make_certificate},
    http_client::{self, Connection},
    wait::wait_until,
};

/// The longest time until a changed file is noticed; the guard of these tests checks ten times a second.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the value of a series.
async fn metric(guard: &GuardProcess, name: &str) -> f64 {
    let page = http_client::get(guard.http(), "/metrics").await.unwrap().body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

async fn reloads(guard: &GuardProcess, result: &str) -> f64 {
    metric(guard, &format!("etcd_guard_certificate_reloads_total{{result=\"{result}\"}}")).await
}

async fn trusts(server: &Server, ca: &str) -> bool {
    Connection::tls(server.address(), ca).await.is_ok()
}

/// Replaces both files of a folder atomically by a symlink, as a mounted Secret does.
fn swap(folder: &Path, name: &str) {
    let made = Command::new("ln").args(["-sfn", name]).arg(folder.join("..data")).status().unwrap();
    assert!(made.success());
}

#[tokio::test]
async fn negotiates_http_1_1() {
    let server = Server::start(UNREACHABLE);
    let stream = http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn serves_new_pair_and_keeps_connections() {
    let server = Server::start(UNREACHABLE);
    let old_ca = server.guard.ca_pem.clone();
    let mut open = Connection::tls(server.address(), &old_ca).await.unwrap();
    let review = deletion_review(&crate::etcd_pod()).to_string();
    assert_eq!(open.post("/validate?timeout=10s", review.clone()).await.unwrap().status, 200);
    let successes = reloads(&server.guard, "success").await;

    let new_ca = make_certificate(server.files());
    wait_until("the new pair is served", RELOAD_TIMEOUT, async || trusts(&server, &new_ca).await).await;
    assert!(!trusts(&server, &old_ca).await);
    assert_eq!(open.post("/validate?timeout=10s", review).await.unwrap().status, 200);
    assert!(reloads(&server.guard, "success").await > successes);
}

#[tokio::test]
async fn notices_symlink_swap_of_mounted_secret() {
    let server = Server::start(UNREACHABLE);
    let folder = server.files().to_owned();
    std::fs::create_dir(folder.join("one")).unwrap();
    std::fs::create_dir(folder.join("two")).unwrap();
    let (one, two) = (make_certificate(&folder.join("one")), make_certificate(&folder.join("two")));
    swap(&folder, "one");
    for file in ["tls.crt", "tls.key"] {
        std::fs::remove_file(folder.join(file)).unwrap();
        std::os::unix::fs::symlink(Path::new("..data").join(file), folder.join(file)).unwrap();
    }
    wait_until("the first pair is served", RELOAD_TIMEOUT, async || trusts(&server, &one).await).await;
    swap(&folder, "two");
    wait_until("the second pair is served", RELOAD_TIMEOUT, async || trusts(&server, &two).await).await;
}

/// Asserts that the old pair is served after the files were damaged, and that the failure is counted.
async fn assert_old_pair_stays(spoil: impl Fn(&Path)) {
    let server = Server::start(UNREACHABLE);
    let before = reloads(&server.guard, "failure").await;
    spoil(server.files());
    wait_until("a failure is counted", RELOAD_TIMEOUT, async || {
        reloads(&server.guard, "failure").await > before
    })
    .await;
    assert!(trusts(&server, &server.guard.ca_pem).await);

    // A later valid pair is served.
    let new_ca = make_certificate(server.files());
    wait_until("the new pair is served", RELOAD_TIMEOUT, async || trusts(&server, &new_ca).await).await;
}

#[tokio::test]
async fn truncated_certificate_keeps_old_pair() {
    assert_old_pair_stays(|files| {
        let path = files.join("tls.crt");
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    })
    .await;
}

#[tokio::test]
async fn mismatched_key_keeps_old_pair() {
    assert_old_pair_stays(|files| {
        std::fs::write(files.join("tls.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    })
    .await;
}

#[tokio::test]
async fn invalid_and_missing_files_keep_old_pair() {
    assert_old_pair_stays(|files| std::fs::write(files.join("tls.crt"), "rubbish").unwrap()).await;
    assert_old_pair_stays(|files| std::fs::remove_file(files.join("tls.key")).unwrap()).await;
}

#[tokio::test]
async fn exports_expiry_of_certificate() {
    let server = Server::start(UNREACHABLE);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("localhost")]).unwrap();
    leaf.not_after = rcgen::date_time_ymd(2031, 1, 1);
    std::fs::write(server.files().join("tls.crt"), leaf.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(server.files().join("tls.key"), key.serialize_pem()).unwrap();
    wait_until("the metric has the expiry", RELOAD_TIMEOUT, async || {
        let expiry = metric(&server.guard, "etcd_guard_certificate_expiry_timestamp_seconds").await;
        (expiry - 1_924_992_000.0).abs() < 1.0
    })
    .await;
}
