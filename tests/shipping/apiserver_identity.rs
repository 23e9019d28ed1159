//! The apiserver's own identity, as docs/install.md gives it to an apiserver: with it a guard that wants one answers, and
//! nobody else gets an answer.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::{
    path_of,
    register_end::free,
    self_managed::{make_etcd_pod, permit},
    support::{control_plane::ControlPlane, self_managed_guard::SelfManagedGuard, wait::until},
};

/// Longest that the guard or the apiserver may take for anything, next to compilers.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes `NAME-ca.crt`, and `NAME.crt` with `NAME.key` of whom that CA vouches for.
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

/// The two files of docs/install.md, for a certificate in this folder; the first is what the apiserver's flag names.
fn documented_files(folder: &Path) -> PathBuf {
    let text = fs::read_to_string(path_of("docs/install.md")).unwrap();
    let files: Vec<_> = text.split("```yaml\n").skip(1).map(|it| it.split("```").next().unwrap()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let (admission, caller) = (folder.join("admission.yaml"), folder.join("webhooks.kubeconfig"));
    for (file, content) in [(&admission, files[0]), (&caller, files[1])] {
        fs::write(file, content.replace("/etc/kubernetes/webhooks/", &format!("{}/", folder.display())))
            .unwrap();
    }
    admission
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apiserver_with_the_documented_identity_is_answered_and_one_of_another_ca_is_not() {
    let folder = tempfile::tempdir().unwrap();
    make_identity(folder.path(), "apiserver");
    make_identity(folder.path(), "stranger");
    let admission = format!("--admission-control-config-file={}", documented_files(folder.path()).display());
    let control_plane = ControlPlane::start_with(&[], &["--apiserver-flag", &admission]);
    let (kubeconfig, kubectl) = (permit(&control_plane), control_plane.kubectl());
    make_etcd_pod(&kubectl).await;
    let (address, url) = free();
    let launch = |ca: &str| {
        let ca = format!("--client-ca={}", folder.path().join(ca).display());
        SelfManagedGuard::launch(&kubeconfig, address, &["--register", &url, &ca])
    };
    let delete = async || kubectl.run(&["-n", "prod", "delete", "pod", "etcd-0", "--dry-run=server"]).await;

    let mut guard = launch("apiserver-ca.crt");
    guard.wait_until_ready().await;
    until("the guard answers the apiserver", LIMIT, async || {
        delete().await.stderr.contains("admission webhook \"guard.etcd-guard.io\" denied the request")
    })
    .await;

    guard.signal(Signal::SIGTERM);
    guard.wait_for_end().await;
    let guard = launch("stranger-ca.crt");
    guard.wait_until_ready().await;
    until("the apiserver gets no answer", LIMIT, async || {
        let said = delete().await.stderr;
        said.contains("failed calling webhook \"guard.etcd-guard.io\"") && said.contains("tls:")
    })
    .await;
}
