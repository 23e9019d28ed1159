//! Certificates in files: a new pair is served without a restart, a broken one is not.

use std::{path::Path, process::Command, time::Duration};

use rcgen::{CertificateParams, KeyPair};

use crate::{
    Guarded, NOBODY, deletion_of,
    support::{
        guard_process::{GuardProcess, make_certificate},
        http_client::{self, Connection},
        wait::until,
    },
};

/// Longest until a changed file is noticed; the tests' guard looks ten times a second.
const NOTICED: Duration = Duration::from_secs(10);

/// A metric of the guard, without labels or with these.
async fn metric(guard: &GuardProcess, name: &str) -> f64 {
    let page = http_client::get(guard.http(), "/metrics").await.unwrap().body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {page}"))
}

async fn reloads(guard: &GuardProcess, result: &str) -> f64 {
    metric(guard, &format!("etcd_guard_certificate_reloads_total{{result=\"{result}\"}}")).await
}

async fn trusts(guarded: &Guarded, ca: &str) -> bool {
    Connection::tls(guarded.address(), ca).await.is_ok()
}

/// Puts both files of a folder in place at once, as a mounted Secret does: by a symlink.
fn swap(folder: &Path, name: &str) {
    let made = Command::new("ln").args(["-sfn", name]).arg(folder.join("..data")).status().unwrap();
    assert!(made.success());
}

#[tokio::test]
async fn a_caller_that_prefers_http_2_is_told_to_speak_http_1_1() {
    let guarded = Guarded::by(NOBODY);
    let stream = http_client::tls(guarded.address(), &guarded.guard.ca_pem).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn a_new_pair_is_served_and_old_connections_live_on() {
    let guarded = Guarded::by(NOBODY);
    let old_ca = guarded.guard.ca_pem.clone();
    let mut open = Connection::tls(guarded.address(), &old_ca).await.unwrap();
    let review = deletion_of(&crate::etcd_pod()).to_string();
    assert_eq!(open.post("/validate?timeout=10s", review.clone()).await.unwrap().status, 200);
    let successes = reloads(&guarded.guard, "success").await;

    let new_ca = make_certificate(guarded.files());
    until("the new pair is served", NOTICED, async || trusts(&guarded, &new_ca).await).await;
    assert!(!trusts(&guarded, &old_ca).await);
    assert_eq!(open.post("/validate?timeout=10s", review).await.unwrap().status, 200);
    assert!(reloads(&guarded.guard, "success").await > successes);
}

#[tokio::test]
async fn a_mounted_secret_that_swaps_its_symlink_is_noticed() {
    let guarded = Guarded::by(NOBODY);
    let folder = guarded.files().to_owned();
    std::fs::create_dir(folder.join("one")).unwrap();
    std::fs::create_dir(folder.join("two")).unwrap();
    let (one, two) = (make_certificate(&folder.join("one")), make_certificate(&folder.join("two")));
    swap(&folder, "one");
    for file in ["tls.crt", "tls.key"] {
        std::fs::remove_file(folder.join(file)).unwrap();
        std::os::unix::fs::symlink(Path::new("..data").join(file), folder.join(file)).unwrap();
    }
    until("the first pair is served", NOTICED, async || trusts(&guarded, &one).await).await;
    swap(&folder, "two");
    until("the second pair is served", NOTICED, async || trusts(&guarded, &two).await).await;
}

/// Whatever the files hold now, the old pair stays, and that is counted.
async fn assert_old_pair_stays(spoil: impl Fn(&Path)) {
    let guarded = Guarded::by(NOBODY);
    let before = reloads(&guarded.guard, "failure").await;
    spoil(guarded.files());
    until("a failure is counted", NOTICED, async || reloads(&guarded.guard, "failure").await > before).await;
    assert!(trusts(&guarded, &guarded.guard.ca_pem).await);

    // And it is not the end: a good pair is taken all the same.
    let new_ca = make_certificate(guarded.files());
    until("the new pair is served", NOTICED, async || trusts(&guarded, &new_ca).await).await;
}

#[tokio::test]
async fn a_truncated_certificate_keeps_the_old_pair() {
    assert_old_pair_stays(|files| {
        let path = files.join("tls.crt");
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_key_of_another_certificate_keeps_the_old_pair() {
    assert_old_pair_stays(|files| {
        std::fs::write(files.join("tls.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    })
    .await;
}

#[tokio::test]
async fn rubbish_and_missing_files_keep_the_old_pair() {
    assert_old_pair_stays(|files| std::fs::write(files.join("tls.crt"), "rubbish").unwrap()).await;
    assert_old_pair_stays(|files| std::fs::remove_file(files.join("tls.key")).unwrap()).await;
}

#[tokio::test]
async fn the_end_of_the_certificate_is_told() {
    let guarded = Guarded::by(NOBODY);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![String::from("localhost")]).unwrap();
    leaf.not_after = rcgen::date_time_ymd(2031, 1, 1);
    std::fs::write(guarded.files().join("tls.crt"), leaf.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(guarded.files().join("tls.key"), key.serialize_pem()).unwrap();
    until("the metric tells it", NOTICED, async || {
        let expiry = metric(&guarded.guard, "etcd_guard_certificate_expiry_timestamp_seconds").await;
        (expiry - 1_924_992_000.0).abs() < 1.0
    })
    .await;
}
