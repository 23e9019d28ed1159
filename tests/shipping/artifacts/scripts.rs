//! The scripts that users run on their own clusters.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::{kustomize, project_path, stdout};
use test_support::{
    kubernetes::control_plane::ControlPlane,
    processes::{child::scoped_command, testbed::program},
};

const CONFIGURATIONS: [&str; 6] = [
    "validatingwebhookconfiguration/etcd-guard",
    "mutatingwebhookconfiguration/etcd-guard",
    "mutatingwebhookconfiguration/etcd-guard-inject",
    "mutatingwebhookconfiguration/etcd-guard-nodes",
    "validatingwebhookconfiguration/etcd-guard-rules",
    "validatingwebhookconfiguration/etcd-guard-node-deletions",
];

/// The environment of a script, with a kubectl on its PATH that records its calls.
struct Terminal<'a> {
    control_plane: &'a ControlPlane,
    programs: PathBuf,
}

impl<'a> Terminal<'a> {
    fn start(control_plane: &'a ControlPlane) -> Self {
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
        let mut command = scoped_command(project_path(words[0]));
        command.args(&words[1..]).env("PATH", path).env("KUBECONFIG", self.control_plane.admin_kubeconfig());
        command.output().unwrap()
    }

    fn run_checked(&self, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a script that must fail, and returns its error output.
    fn run_failing(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the kubectl commands since the last call.
    fn recorded_commands(&self) -> Vec<String> {
        let file = self.programs.join("typed");
        let lines = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
        fs::remove_file(file).unwrap();
        lines
    }

    fn get(&self, words: &[&str]) -> Value {
        let words = [&["get", "-o", "json"], words].concat();
        serde_json::from_str(&self.control_plane.kubectl().run_checked(&words).stdout).unwrap()
    }

    /// Whether the namespace exists and is not terminating.
    fn has_namespace(&self, name: &str) -> bool {
        let found = self.get(&["namespaces", "--field-selector", &format!("metadata.name={name}")]);
        found["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|namespace| namespace["metadata"]["deletionTimestamp"].is_null())
    }

    /// Returns the CA bundle of a configuration as PEM; all of its webhooks have the same one.
    fn bundle(&self, configuration: &str) -> String {
        let object = self.get(&[configuration]);
        let entries = object["webhooks"].as_array().unwrap();
        let bundles: Vec<_> = entries.iter().map(|entry| &entry["clientConfig"]["caBundle"]).collect();
        assert!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "{configuration}: {bundles:?}");
        String::from_utf8(STANDARD.decode(bundles[0].as_str().unwrap()).unwrap()).unwrap()
    }

    /// Returns the stored certificate of the guard.
    fn leaf(&self, namespace: &str) -> String {
        let secret = self.get(&["secret/etcd-guard-tls", "-n", namespace]);
        String::from_utf8(STANDARD.decode(secret["data"]["tls.crt"].as_str().unwrap()).unwrap()).unwrap()
    }
}

/// Asserts that this bundle verifies this certificate for this name.
fn assert_trusted(folder: &Path, bundle: &str, leaf: &str, name: &str) {
    let (ca, certificate) = (folder.join("bundle.pem"), folder.join("leaf.pem"));
    fs::write(&ca, bundle).unwrap();
    fs::write(&certificate, leaf).unwrap();
    let mut verify = scoped_command("openssl");
    verify.args(["verify", "-verify_hostname", name, "-CAfile"]).arg(ca).arg(certificate);
    stdout(&mut verify);
}

/// Returns a CA as PEM that is valid from the beginning of one year to the beginning of another.
pub(crate) fn ca_valid_between(from: i32, to: i32) -> String {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.not_before = rcgen::date_time_ymd(from, 1, 1);
    ca.not_after = rcgen::date_time_ymd(to, 1, 1);
    ca.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn certificate_renewal_overlaps_old_and_new_trust() {
    let control_plane = ControlPlane::start(&[]);
    let (kubectl, terminal) = (control_plane.kubectl(), Terminal::start(&control_plane));
    let mut objects = crate::objects(&kustomize("deploy/overlays/mutating"));
    objects.extend(crate::objects(&kustomize("deploy/components/node-deletions")));
    objects.retain(|object| object["kind"].as_str().unwrap().ends_with("WebhookConfiguration"));
    let file = control_plane.dir.join("configurations.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    kubectl.run_checked(&["create", "namespace", "ops"]);

    let make = ["scripts/certs", "--apply", "--namespace", "ops"];
    terminal.run_checked(&make);
    let first = terminal.leaf("ops");
    for configuration in CONFIGURATIONS {
        let bundle = terminal.bundle(configuration);
        assert_trusted(&control_plane.dir, &bundle, &first, "etcd-guard.ops.svc");
    }

    // Adds an expired CA to the bundle.
    let with_expired = STANDARD.encode(terminal.bundle(CONFIGURATIONS[1]) + &ca_valid_between(2019, 2020));
    let patch =
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": with_expired}]);
    kubectl.run_checked(&["patch", CONFIGURATIONS[1], "--type=json", "-p", &patch.to_string()]);
    terminal.recorded_commands();
    terminal.run_checked(&make);
    let second = terminal.leaf("ops");
    assert_ne!(first, second);
    for configuration in CONFIGURATIONS {
        let bundle = terminal.bundle(configuration);
        assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "{configuration}: {bundle}");
        assert_trusted(&control_plane.dir, &bundle, &first, "etcd-guard.ops.svc");
        assert_trusted(&control_plane.dir, &bundle, &second, "etcd-guard.ops.svc");
    }
    let typed = terminal.recorded_commands();
    let trusted = typed.iter().rposition(|command| command.starts_with("patch ")).unwrap();
    let stored = typed.iter().position(|command| command.starts_with("apply ")).unwrap();
    assert!(trusted < stored, "{typed:?}");
}

#[test]
fn minikube_script_preserves_existing_objects() {
    let control_plane = ControlPlane::start(&[]);
    let (kubectl, terminal) = (control_plane.kubectl(), Terminal::start(&control_plane));
    let (deploy, remove) =
        (["scripts/minikube", "--no-load", "--no-story"], ["scripts/minikube", "--remove"]);
    for name in ["prod", "etcd-guard"] {
        kubectl.run_checked(&["create", "namespace", name]);
        for words in [&deploy[..], &remove] {
            let output = terminal.run_failing(words);
            assert!(
                output.contains(&format!("namespace {name} ")) && output.contains("left alone"),
                "{output}"
            );
        }
        assert!(terminal.has_namespace(name));
        kubectl.run_checked(&["delete", "namespace", name]);
    }
    assert!(
        !terminal
            .recorded_commands()
            .iter()
            .any(|command| ["apply", "create", "delete"].iter().any(|word| command.starts_with(word)))
    );

    // A guard that the script did not install.
    let webhooks = project_path("deploy/base/webhooks.yaml");
    kubectl.run_checked(&["apply", "-f", &webhooks.to_string_lossy()]);
    assert!(terminal.run_failing(&remove).contains("left alone"));

    for name in ["prod", "etcd-guard"] {
        kubectl.run_checked(&["create", "namespace", name]);
        kubectl.run_checked(&[
            "label",
            "namespace",
            name,
            "app.kubernetes.io/managed-by=etcd-guard-minikube",
        ]);
    }
    terminal.run_checked(&remove);
    assert!(!terminal.has_namespace("prod") && !terminal.has_namespace("etcd-guard"));
    let left = terminal.get(&["validatingwebhookconfigurations"]);
    assert_eq!(left["items"], json!([]));
}
