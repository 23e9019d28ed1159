//! The client certificate of the API server, as docs/network-policies.md configures it: a guard that requires one accepts only
//! callers with it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::{
    certificates::self_managed::{make_etcd_pod, permit},
    project_path,
    registration::end::free_address,
};
use test_support::{
    guard::self_managed::SelfManagedGuard, kubernetes::control_plane::ControlPlane, wait::wait_until,
};

/// The longest time for each step, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes a CA to `NAME-ca.crt`, and a client certificate of it to `NAME.crt` and `NAME.key`.
fn make_identity(folder: &Path, name: &str) {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, format!("CA of {name}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.join(format!("{name}-ca.crt")), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let mut caller = CertificateParams::new(Vec::new()).unwrap();
    caller.distinguished_name.push(DnType::CommonName, name);
    caller.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = caller.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// Writes the two files of docs/network-policies.md for certificates in this folder. Returns the file for the flag of the API
/// server.
fn documented_files(folder: &Path) -> PathBuf {
    let text = fs::read_to_string(project_path("docs/network-policies.md")).unwrap();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let files: Vec<_> = blocks.filter(|block| block.contains("/etc/kubernetes/webhooks/")).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let (admission, caller) = (folder.join("admission.yaml"), folder.join("webhooks.kubeconfig"));
    for (file, content) in [(&admission, files[0]), (&caller, files[1])] {
        fs::write(file, content.replace("/etc/kubernetes/webhooks/", &format!("{}/", folder.display())))
            .unwrap();
    }
    admission
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_only_api_servers_with_documented_identity() {
    let folder = tempfile::tempdir().unwrap();
    make_identity(folder.path(), "apiserver");
    make_identity(folder.path(), "stranger");
    let admission = format!("--admission-control-config-file={}", documented_files(folder.path()).display());
    let control_plane = ControlPlane::start_with(&[], &["--apiserver-flag", &admission]);
    let (kubeconfig, kubectl) = (permit(&control_plane), control_plane.kubectl());
    make_etcd_pod(&kubectl).await;
    let (address, url) = free_address();
    let launch = |ca: &str| {
        let ca = format!("--client-ca={}", folder.path().join(ca).display());
        SelfManagedGuard::launch(&kubeconfig, address, &["--register", &url, &ca])
    };
    let delete = async || kubectl.run(&["-n", "prod", "delete", "pod", "etcd-0", "--dry-run=server"]).await;

    let mut guard = launch("apiserver-ca.crt");
    guard.wait_until_ready().await;
    wait_until("the guard accepts the API server", TIMEOUT, async || {
        delete().await.stderr.contains("admission webhook \"guard.etcd-guard.io\" denied the request")
    })
    .await;

    guard.signal(Signal::SIGTERM);
    guard.wait_for_end().await;
    let guard = launch("stranger-ca.crt");
    guard.wait_until_ready().await;
    wait_until("the guard rejects the API server", TIMEOUT, async || {
        let output = delete().await.stderr;
        output.contains("failed calling webhook \"guard.etcd-guard.io\"") && output.contains("tls:")
    })
    .await;
}
