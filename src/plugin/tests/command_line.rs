//! The program as a user meets it: closed outputs, servers that refuse, wrong words, and exit status. No cluster is needed.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
    time::SystemTime,
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::{ServerConfig, ServerConnection, pki_types::PrivateKeyDer};

use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-etcd_guard");

/// The exit status of a program that SIGPIPE ended.
const CLOSED: i32 = 141;

const SET: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: etcd, namespace: prod}
spec:
  replicas: 3
  ordinals: {start: 1}
  template: {spec: {containers: [{name: etcd, image: etcd, command: [etcd]}]}}
";

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: web}]}\n";

fn plugin(arguments: &[&str], kubeconfig: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).env("KUBECONFIG", kubeconfig).env_remove("RUST_BACKTRACE");
    command
}

/// Returns exit status and standard error of a command.
#[track_caller]
fn failed(arguments: &[&str], kubeconfig: &str) -> (i32, String) {
    let Output { status, stderr, .. } = plugin(arguments, kubeconfig).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

fn in_folder(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn kubeconfig(folder: &Path, server: &str, user: &str) -> String {
    let content = format!(
        "kind: Config\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {user}}}]\n\
         contexts: [{{name: prod, context: {{cluster: c, user: u}}}}, {{name: dev, context: {{cluster: c, user: u}}}}]\n\
         current-context: prod\n"
    );
    in_folder(folder, "kubeconfig", &content)
}

/// Returns the URL of a server that answers every request with this status and message.
fn refusing_server(code: u16, message: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let body = format!(
                "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\"message\":\"{message}\",\
                 \"reason\":\"Refused\",\"code\":{code}}}"
            );
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // Reads the head and, of a review, the body.
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let length = stream.read(&mut buffer).unwrap();
                if length == 0 {
                    break;
                }
                request.extend_from_slice(&buffer[..length]);
            }
            let head = format!(
                "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\nconnection: close\r\ndate: {}\r\ncontent-length: {}\r\n\r\n",
                httpdate::fmt_http_date(SystemTime::now()),
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

#[test]
fn closed_output_ends_the_program_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let (set, pod) = (in_folder(folder.path(), "set.yaml", SET), in_folder(folder.path(), "pod.yaml", POD));
    let config = in_folder(folder.path(), "config.yaml", "apiVersion: etcd-guard.io/v1alpha1\n");
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["config", "schema"],
        vec!["config", "check", &config],
        vec!["config", "check", &config, "-o", "json"],
        vec!["completion", "bash"],
        vec!["__complete", "--", "st"],
        vec!["version", "--client"],
        vec!["version", "--client", "-o", "json"],
        vec!["inspect", "-f", &set, "--role"],
    ];
    commands.extend(["yaml", "json", "patch"].map(|format| vec!["inject", "-f", &pod, "-o", format]));
    commands
        .extend(["table", "name", "json", "yaml"].map(|format| vec!["inspect", "-f", &set, "-o", format]));
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            plugin(&arguments, "/nonexistent").stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.as_str()), (Some(CLOSED), ""), "{arguments:?}");
    }
    // A full disk is an error, and no panic.
    let full = plugin(&["config", "schema"], "").stdout(File::create("/dev/full").unwrap()).output().unwrap();
    assert_eq!(full.status.code(), Some(2));
    assert_eq!(String::from_utf8(full.stderr).unwrap(), "error: No space left on device\n");
    // Without a reader of the errors, the exit status remains.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = plugin(&["status"], "/nonexistent").stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

/// The message of the API server's authorizer.
const FORBIDDEN: &str = "pods is forbidden: User \\\"alice\\\" cannot list resource \\\"pods\\\"";

/// The commands that contact the API server.
const COMMANDS: [&[&str]; 6] = [
    &["status"],
    &["check", "etcd-0"],
    &["inspect", "etcd-0"],
    &["restart", "sts/etcd"],
    &["move-leader", "etcd-0"],
    &["version"],
];

#[track_caller]
fn assert_plain(stderr: &str, arguments: &[&str]) {
    for word in ["os error", "Status {", "Output {", "ApiError", "'\"", "1.28", "panicked"] {
        assert!(!stderr.contains(word), "{arguments:?}: {stderr}");
    }
    assert_eq!(
        stderr.lines().filter(|line| line.starts_with("error: ")).count(),
        1,
        "{arguments:?}: {stderr}"
    );
}

#[test]
fn refusals_name_the_server_and_the_cause_once() {
    let folder = tempfile::tempdir().unwrap();
    let unauthorized = refusing_server(401, "Unauthorized");
    let forbidden = refusing_server(403, FORBIDDEN);
    let broken = refusing_server(500, "etcdserver: request timed out");
    let refused = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let token = "{token: x}";
    let program = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, 'echo login expired >&2; exit 3'], \
                   interactiveMode: Never}}";
    for (server, user, cause) in [
        (&unauthorized, token, format!("the API server at {unauthorized} rejects your credentials (401)")),
        (
            &forbidden,
            token,
            format!("the API server at {forbidden} responded: pods is forbidden: User \"alice\" cannot list"),
        ),
        (&broken, token, format!("the API server at {broken} responded: etcdserver: request timed out")),
        (&refused, token, format!("no connection to the API server at {refused}: Connection refused")),
        (
            &refused,
            program,
            format!(
                "no credentials for the API server at {refused}: the exec plugin of the kubeconfig failed with status 3: login expired"
            ),
        ),
    ] {
        let file = kubeconfig(folder.path(), server, user);
        for arguments in COMMANDS {
            let (status, stderr) = failed(arguments, &file);
            assert_plain(&stderr, arguments);
            let last = stderr.lines().last().unwrap();
            assert_eq!((status, last.matches(&cause).count()), (2, 1), "{arguments:?}: {stderr}");
        }
    }
}

/// Returns the URL of a server with a certificate that no authority of this machine signed.
fn untrusted_server(is_ca: IsCa) -> String {
    let mut parameters = CertificateParams::new([String::from("localhost")]).unwrap();
    parameters.is_ca = is_ca;
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let config = Arc::new(config);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            // The client ends the handshake.
            let _ = connection.complete_io(&mut stream.unwrap());
        }
    });
    url
}

/// No line of the log of a library precedes the error.
#[test]
fn untrusted_certificates_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (is_ca, cause) in [
        (IsCa::NoCa, "its certificate is signed by an unknown authority"),
        (IsCa::Ca(BasicConstraints::Unconstrained), "its certificate is that of an authority"),
    ] {
        let server = untrusted_server(is_ca);
        let file = kubeconfig(folder.path(), &server, "{token: x}");
        let (status, stderr) = failed(&["status"], &file);
        let expected = format!(
            "error: failed to list the pods of namespace etcd-guard: no connection to the API server at {server}: {cause}; \
             compare certificate-authority in the kubeconfig\n"
        );
        assert_eq!((status, stderr), (2, expected));
    }
}

#[test]
fn doctor_says_only_what_it_read() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["doctor"][..], &["doctor", "--pre"]] {
        let server = refusing_server(401, "Unauthorized");
        let file = kubeconfig(folder.path(), &server, "{token: x}");
        let Output { status, stdout, stderr } = plugin(arguments, &file).output().unwrap();
        let expected = format!(
            "error: the API server at {server} rejects your credentials (401): log in again, or choose another --context\n"
        );
        let printed = (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert_eq!(printed, (Some(2), String::new(), expected), "{arguments:?}");
        for (code, message) in [(403, FORBIDDEN), (500, "etcdserver: request timed out")] {
            let file = kubeconfig(folder.path(), &refusing_server(code, message), "{token: x}");
            let Output { status, stdout, stderr } = plugin(arguments, &file).output().unwrap();
            let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
            let expected = "error: no property of the guard could be read; each line above says why\n";
            assert_eq!(
                (status.code(), stderr.as_str()),
                (Some(2), expected),
                "{arguments:?} {code}: {stdout}"
            );
            let lines: Vec<&str> = stdout.lines().filter(|line| line.starts_with("warning")).collect();
            let cause = message.replace('\\', "");
            for line in &lines {
                assert!(
                    line.contains("not checked: ") && line.contains(&cause),
                    "{arguments:?} {code}: {line}"
                );
            }
            assert!(lines.len() >= 8, "{stdout}");
            assert_eq!(stdout.contains("auth can-i"), code == 403, "{arguments:?} {code}: {stdout}");
            assert_eq!(stdout.matches("   See https://").count(), lines.len(), "{stdout}");
        }
    }
}

/// Other clients reject such files as well. The line is in the words of YAML.
#[test]
fn unreadable_files_are_one_line_with_a_position() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| in_folder(folder.path(), name, content);
    let (broken, several, empty) = (
        file("broken.yaml", "a: ["),
        file("several.yaml", "kind: Pod\n---\nkind: Pod\n"),
        file("empty.yaml", ""),
    );
    for (arguments, expected) in [
        (
            &["inject", "-f", &broken][..],
            format!("{broken}: invalid YAML: unclosed bracket '[' at line 1, column 4"),
        ),
        (
            &["inspect", "-f", &broken],
            format!("{broken}: invalid YAML: unclosed bracket '[' at line 1, column 4"),
        ),
        (
            &["inject", "-f", &several],
            format!("{several}: one document is expected; another one begins at line 3, column 1"),
        ),
        (&["inspect", "-f", &several], format!("{several}: Pod: the metadata is missing")),
        (&["inject", "-f", &empty], format!("{empty}: expected one object of kind Pod")),
    ] {
        let found = failed(arguments, "/nonexistent");
        assert_eq!(found, (2, format!("error: {expected}\n")), "{arguments:?}");
    }
    for (path, expected) in [
        (&several, "3: one document is expected; another one begins at line 3, column 1"),
        (&empty, "1: the document is empty, expected a map"),
    ] {
        let (status, stderr) = failed(&["config", "check", path], "");
        assert_eq!((status, stderr), (1, format!("{path}:{expected}\nerror: {path} has 1 error\n")));
    }
}

#[test]
fn kubeconfig_errors_say_what_exists() {
    let folder = tempfile::tempdir().unwrap();
    let file = kubeconfig(folder.path(), "http://127.0.0.1:1", "{token: x}");
    for arguments in COMMANDS {
        let (status, stderr) = failed(arguments, "/nonexistent");
        let expected = "error: cannot read kubeconfig /nonexistent: No such file or directory; pass --kubeconfig, or set KUBECONFIG\n";
        assert_eq!((status, stderr.as_str()), (2, expected), "{arguments:?}");
    }
    let (status, stderr) = failed(&["--context", "test", "status"], &file);
    let expected = format!("error: kubeconfig {file} has no context test; its contexts: prod, dev\n");
    assert_eq!((status, stderr), (2, expected));
    let empty = in_folder(folder.path(), "empty", "kind: Config\n");
    let expected = format!("error: kubeconfig {empty} has no contexts\n");
    assert_eq!(failed(&["status"], &empty), (2, expected));
    let server = kubeconfig(folder.path(), "not a url", "{token: x}");
    let (_, stderr) = failed(&["status"], &server);
    assert!(stderr.contains("the server of the cluster is not a URL such as https://HOST:6443"), "{stderr}");
}

/// Without a kubeconfig, an argument that is checked after the connection would not be the error.
#[test]
fn arguments_are_checked_before_any_contact() {
    for (arguments, expected) in [
        (&["check", "--evict", "sts/etcd"][..], "--evict requires a pod"),
        (&["check", "--replicas", "1", "etcd-0"], "--replicas requires a StatefulSet"),
        (&["check", "--replicas=-1", "sts/etcd"], "expected a number, 0 or more"),
        (&["check", "--grace-period=-1", "etcd-0"], "expected a number of seconds, 0 or more"),
        (&["check", "a b"], "\"a b\" is not the name of a pod"),
        (&["check", "node/a b"], "\"a b\" is not the name of a node"),
        (&["status", "-n", "a b"], "expected a namespace"),
        (&["-n", "A", "status"], "expected a namespace"),
        (&["status", "prod/etcd", "-n", "stage"], "differs from --namespace stage"),
        (&["status", "--guard", "a b"], "expected http://HOST:PORT, such as http://127.0.0.1:8080"),
        (&["status", "--interval", "5"], "expected a duration such as 5s, 10m or 1h30m"),
        (&["restart", "sts/etcd", "--timeout", "0s"], "expected a duration such as 5s, 10m or 1h30m"),
        (&["restart", "sts/a b"], "expected statefulset/NAME"),
        (&["move-leader", "etcd-0", "--to", "etcd-0"], "leadership cannot leave pod etcd-0 and move to it"),
        (&["move-leader", "etcd-0", "--to", "a b"], "expected a name"),
        (&["inspect", "A B"], "\"A B\" is not the name of a Pod"),
        (&["inspect", "etcd-0", "--service-account", "Bad SA"], "expected a name"),
        (&["inspect", "etcd-0", "--guard-namespace", "Bad"], "expected a namespace"),
        (&["status", "Bad Name"], "expected NAME or NAMESPACE/NAME"),
        (&["check", "-l", "a b"], "expected a label selector such as app=etcd"),
        (&["check", "-l", "app=a=b"], "expected a label selector such as app=etcd"),
        (&["status", "--guard-selector", "a b"], "expected a label selector such as app=etcd"),
        (&["restart", "sts/etcd", "--image", ""], "expected an image with a release of etcd as its tag"),
        (
            &["restart", "sts/etcd", "--image", "registry:5000/etcd"],
            "expected an image with a release of etcd as its tag",
        ),
        (&["restart", "sts/etcd", "--image", "etcd:v3.6.16", "--container", "Bad C"], "expected a container"),
        (&["restart", "sts/etcd", "--dry-run", "--abort"], "'--dry-run' cannot be used with '--abort'"),
        (&["conformance", "--storage-class", "Bad C"], "expected a name"),
        (&["check", "etcd-1", "--cascade=orphan"], "--cascade requires a StatefulSet"),
        (&["check", "sts/etcd", "--replicas=1", "--cascade=orphan"], "cannot be used with"),
        (&["check", "sts/etcd", "--grace-period", "5"], "--grace-period requires a pod"),
        (&["check", "ns/prod", "--force"], "--force requires a pod"),
        (&["check", "etcd-1", "--requester", ""], "a value is required for '--requester"),
        (&["check", "node/a", "--evict"], "do not apply to node/NAME"),
    ] {
        let (status, stderr) = failed(arguments, "/nonexistent");
        assert!(status == 2 && stderr.contains(expected), "{arguments:?}: {status} {stderr}");
        assert!(
            !stderr.contains("uri character") && !stderr.contains("invalid digit"),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn inspect_finds_the_pods_of_a_stateful_set_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let set = in_folder(folder.path(), "set.yaml", SET);
    for pod in ["etcd-1", "etcd-3"] {
        let output = plugin(&["inspect", "-f", &set, pod], "/nonexistent").output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let beginning = format!(
            "RECOGNIZED: pod prod/{pod}\n  WHY             container etcd of pod {pod} runs an etcd member\n"
        );
        assert!(stdout.starts_with(&beginning) && !stdout.contains("CONTAINER  "), "{stdout}");
    }
    for pod in ["etcd-0", "etcd-4", "web-1"] {
        let (status, stderr) = failed(&["inspect", "-f", &set, pod], "/nonexistent");
        let expected =
            format!("error: {set} has no pod/{pod}; it has: statefulset/etcd (etcd-1 to etcd-3)\n");
        assert_eq!((status, stderr), (2, expected));
    }
}

#[test]
fn exit_status_is_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| in_folder(folder.path(), name, content);
    let (good, bad) = (
        file("good.yaml", "apiVersion: etcd-guard.io/v1alpha1\n"),
        file("bad.yaml", "guard: 7\nsidecars: {templates: {}}\n"),
    );
    let (set, pod) = (file("set.yaml", SET), file("pod.yaml", POD));
    let rule = file("rule.yaml", "apiVersion: etcd-guard.io/v1alpha1\npodNames: {forbiddenWords: [web]}\n");
    for (arguments, expected) in [
        (&["config", "check", &good][..], 0),
        (&["config", "check", &bad], 1),
        (&["config", "check", "/nonexistent"], 2),
        (&["inspect", "-f", &set], 0),
        (&["inspect", "-f", &pod], 1),
        (&["inspect", "-f", &bad], 2),
        (&["inject", "-f", &pod], 0),
        (&["inject", "-f", &pod, "--config", &rule], 1),
        (&["inject", "-f", &set], 2),
        (&["version", "--client"], 0),
        (&["version"], 2),
        (&["status"], 2),
        (&["unknown"], 2),
        (&["--help"], 0),
    ] {
        let (status, stderr) = failed(arguments, "/nonexistent");
        assert_eq!(status, expected, "{arguments:?}: {stderr}");
    }
    // The JSON output is one document, with the same exit status and without a line on standard error.
    for (path, status) in [(&good, 0), (&bad, 1)] {
        let output = plugin(&["config", "check", path, "-o", "json"], "/nonexistent").output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(status), 0), "{document}");
        assert_eq!((&document["file"], &document["valid"]), (&json!(path), &json!(status == 0)));
        assert_eq!(document["errors"].as_array().unwrap().is_empty(), status == 0, "{document}");
    }
    let output = plugin(&["config", "check", "/nonexistent", "-o", "json"], "").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "no answer is no document");
    let (_, stderr) = failed(&["config", "check", &bad], "");
    assert!(stderr.contains("expected a map") && stderr.contains("expected a list"), "{stderr}");
    assert!(!stderr.contains("struct") && !stderr.contains("sequence"), "{stderr}");
}
