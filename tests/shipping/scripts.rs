//! The scripts that users run on clusters of their own.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::{
    kustomize, path_of, stdout,
    support::{child::mortal, control_plane::ControlPlane, testbed::program},
};

const CONFIGURATIONS: [&str; 4] = [
    "validatingwebhookconfiguration/etcd-guard",
    "mutatingwebhookconfiguration/etcd-guard-inject",
    "mutatingwebhookconfiguration/etcd-guard-nodes",
    "validatingwebhookconfiguration/etcd-guard-rules",
];

/// A terminal with kubectl on its PATH.
struct Terminal<'a> {
    control_plane: &'a ControlPlane,
    programs: PathBuf,
}

impl<'a> Terminal<'a> {
    fn of(control_plane: &'a ControlPlane) -> Self {
        let programs = control_plane.dir.join("programs");
        fs::create_dir(&programs).unwrap();
        let kubectl = programs.join("kubectl");
        let text = format!(
            "#!/bin/sh\necho \"$*\" >>'{}'\nexec '{}' \"$@\"\n",
            programs.join("typed").display(),
            program("kubectl").display()
        );
        fs::write(&kubectl, text).unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        Self { control_plane, programs }
    }

    fn run(&self, words: &[&str]) -> Output {
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap());
        let mut command = mortal(path_of(words[0]));
        command.args(&words[1..]).env("PATH", path).env("KUBECONFIG", self.control_plane.admin_kubeconfig());
        command.output().unwrap()
    }

    fn must(&self, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// What it says when it refuses.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// The commands that scripts gave kubectl since the last call.
    fn typed(&self) -> Vec<String> {
        let file = self.programs.join("typed");
        let lines = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
        fs::remove_file(file).unwrap();
        lines
    }

    fn get(&self, words: &[&str]) -> Value {
        let words = [&["get", "-o", "json"], words].concat();
        serde_json::from_str(&self.control_plane.kubectl().must(&words).stdout).unwrap()
    }

    /// Whether there is such a namespace, and it stays.
    fn keeps_namespace(&self, name: &str) -> bool {
        let found = self.get(&["namespaces", "--field-selector", &format!("metadata.name={name}")]);
        found["items"].as_array().unwrap().iter().any(|it| it["metadata"]["deletionTimestamp"].is_null())
    }

    /// What all entries of a configuration trust, as PEM.
    fn bundle(&self, configuration: &str) -> String {
        let object = self.get(&[configuration]);
        let entries = object["webhooks"].as_array().unwrap();
        let bundles: Vec<_> = entries.iter().map(|it| &it["clientConfig"]["caBundle"]).collect();
        assert!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "{configuration}: {bundles:?}");
        String::from_utf8(STANDARD.decode(bundles[0].as_str().unwrap()).unwrap()).unwrap()
    }

    /// The certificate that is stored for the guard.
    fn leaf(&self, namespace: &str) -> String {
        let secret = self.get(&["secret/etcd-guard-tls", "-n", namespace]);
        String::from_utf8(STANDARD.decode(secret["data"]["tls.crt"].as_str().unwrap()).unwrap()).unwrap()
    }
}

/// Fails unless who trusts this bundle takes this certificate for the guard's.
fn assert_trusted(folder: &Path, bundle: &str, leaf: &str, name: &str) {
    let (ca, certificate) = (folder.join("bundle.pem"), folder.join("leaf.pem"));
    fs::write(&ca, bundle).unwrap();
    fs::write(&certificate, leaf).unwrap();
    let mut verify = mortal("openssl");
    verify.args(["verify", "-verify_hostname", name, "-CAfile"]).arg(ca).arg(certificate);
    stdout(&mut verify);
}

/// A CA that is valid from the beginning of the one year to the beginning of the other, PEM.
pub(super) fn ca_of(from: i32, to: i32) -> String {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.not_before = rcgen::date_time_ymd(from, 1, 1);
    ca.not_after = rcgen::date_time_ymd(to, 1, 1);
    ca.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn new_certificates_are_trusted_before_they_are_stored_and_old_ones_stay_trusted() {
    let control_plane = ControlPlane::start(&[]);
    let (kubectl, terminal) = (control_plane.kubectl(), Terminal::of(&control_plane));
    let mut objects = crate::objects(&kustomize("deploy/overlays/mutating"));
    objects.retain(|it| it["kind"].as_str().unwrap().ends_with("WebhookConfiguration"));
    let file = control_plane.dir.join("configurations.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    kubectl.must(&["apply", "-f", &file.to_string_lossy()]);
    kubectl.must(&["create", "namespace", "ops"]);

    let make = ["scripts/certs", "--apply", "--namespace", "ops"];
    terminal.must(&make);
    let first = terminal.leaf("ops");
    for configuration in CONFIGURATIONS {
        let bundle = terminal.bundle(configuration);
        assert_trusted(&control_plane.dir, &bundle, &first, "etcd-guard.ops.svc");
    }

    // Beside it one that has ended, as if years had passed.
    let with_ended = STANDARD.encode(terminal.bundle(CONFIGURATIONS[1]) + &ca_of(2019, 2020));
    let patch = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": with_ended}]);
    kubectl.must(&["patch", CONFIGURATIONS[1], "--type=json", "-p", &patch.to_string()]);
    terminal.typed();
    terminal.must(&make);
    let second = terminal.leaf("ops");
    assert_ne!(first, second);
    for configuration in CONFIGURATIONS {
        let bundle = terminal.bundle(configuration);
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "{configuration}: {bundle}");
        assert_trusted(&control_plane.dir, &bundle, &first, "etcd-guard.ops.svc");
        assert_trusted(&control_plane.dir, &bundle, &second, "etcd-guard.ops.svc");
    }
    let typed = terminal.typed();
    let trusted = typed.iter().rposition(|it| it.starts_with("patch ")).unwrap();
    let stored = typed.iter().position(|it| it.starts_with("apply ")).unwrap();
    assert!(trusted < stored, "{typed:?}");
}

#[test]
fn what_the_minikube_script_did_not_make_it_leaves_alone() {
    let control_plane = ControlPlane::start(&[]);
    let (kubectl, terminal) = (control_plane.kubectl(), Terminal::of(&control_plane));
    let (deploy, remove) =
        (["scripts/minikube", "--no-load", "--no-story"], ["scripts/minikube", "--remove"]);
    for name in ["prod", "etcd-guard"] {
        kubectl.must(&["create", "namespace", name]);
        for words in [&deploy[..], &remove] {
            let said = terminal.refused(words);
            assert!(said.contains(&format!("namespace {name} ")) && said.contains("left alone"), "{said}");
        }
        assert!(terminal.keeps_namespace(name));
        kubectl.must(&["delete", "namespace", name]);
    }
    assert!(
        !terminal
            .typed()
            .iter()
            .any(|it| ["apply", "create", "delete"].iter().any(|word| it.starts_with(word)))
    );

    // A guard somewhere else.
    let webhooks = path_of("deploy/base/webhooks.yaml");
    kubectl.must(&["apply", "-f", &webhooks.to_string_lossy()]);
    assert!(terminal.refused(&remove).contains("left alone"));

    for name in ["prod", "etcd-guard"] {
        kubectl.must(&["create", "namespace", name]);
        kubectl.must(&["label", "namespace", name, "app.kubernetes.io/managed-by=etcd-guard-minikube"]);
    }
    terminal.must(&remove);
    assert!(!terminal.keeps_namespace("prod") && !terminal.keeps_namespace("etcd-guard"));
    let left = terminal.get(&["validatingwebhookconfigurations"]);
    assert_eq!(left["items"], json!([]));
}
