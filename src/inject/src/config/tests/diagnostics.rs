//! Every error of a file is reported with its line.

use super::super::Config;

fn diagnostics(text: &str) -> Vec<String> {
    match Config::read(text) {
        Ok(_) => Vec::new(),
        Err(diagnostics) => diagnostics.iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
pub(super) fn assert_diagnostics(sections: &str, expected: &[(u64, &str)]) {
    let found = diagnostics(&format!("apiVersion: etcd-guard.io/v1alpha1\n{sections}"));
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (line, part)) in found.iter().zip(expected) {
        assert!(found.starts_with(&format!("line {line}: ")) && found.contains(part), "{found:?} {part:?}");
    }
}

#[test]
fn accepts_defaults_and_file_with_version_only() {
    assert_eq!(Config::default().lxcfs.root, "/var/lib/lxcfs");
    assert_diagnostics("", &[]);
}

/// Diagnostics are written to terminals and logs.
#[test]
fn formats_diagnostic_on_one_line() {
    assert_diagnostics(
        "guard: {floor: {\"a.\\n\\e[31m\": 1}}\nlxcfs: {profile: \"\\n\"}",
        &[(2, r#"guard.floor["a.\n\u{1b}[31m"]: unknown field `a.\n\u{1b}[31m`"#), (3, r"\n")],
    );
    assert!(diagnostics("\u{e9}: 1").concat().contains('\u{e9}'));
}

#[test]
fn reports_denied_networks_that_are_no_networks() {
    assert_diagnostics(
        "guard:\n  probe:\n    deniedNetworks:\n    - 10.0.0.0/8\n    - 10.0.0/8\n    - fd00::/129",
        &[
            (6, "guard.probe.deniedNetworks[1]: \"10.0.0/8\" is not a network in CIDR notation"),
            (7, "guard.probe.deniedNetworks[2]: \"fd00::/129\" is not a network"),
        ],
    );
    assert_diagnostics("guard: {probe: {deniedNetworks: []}}", &[]);
}

#[test]
fn reports_invalid_owner_kinds() {
    let kind = |group: &str, version: &str, resource: &str, kind: &str| {
        format!("  - {{group: {group}, version: {version}, resource: {resource}, kind: {kind}}}\n")
    };
    let valid = kind("example.com", "v1alpha1", "etcdclusters", "EtcdCluster");
    let file = |entries: &[&str]| format!("guard:\n  ownerKinds:\n{}", entries.concat());
    assert_diagnostics(&file(&[&valid]), &[]);
    assert_diagnostics(
        &file(&[
            &valid,
            &valid,
            &kind("apps", "v1", "deployments", "Deployment"),
            &kind("''", "'1'", "EtcdClusters", "etcd-cluster"),
            &kind("a..b", "v1/x", "../secrets", "Etcd"),
        ]),
        &[
            (5, "guard.ownerKinds[1].kind: EtcdCluster of example.com has an entry already"),
            (6, "guard.ownerKinds[2].kind: Deployment of apps needs no entry"),
            (7, "guard.ownerKinds[3].group: \"\" is not an API group"),
            (7, "guard.ownerKinds[3].kind: \"etcd-cluster\" is not a kind"),
            (7, "guard.ownerKinds[3].resource: \"EtcdClusters\" is not the plural name"),
            (7, "guard.ownerKinds[3].version: \"1\" is not a version"),
            (8, "guard.ownerKinds[4].group: \"a..b\" is not an API group"),
            (8, "guard.ownerKinds[4].resource: \"../secrets\" is not the plural name"),
            (8, "guard.ownerKinds[4].version: \"v1/x\" is not a version"),
        ],
    );
    assert_diagnostics(
        "guard:\n  ownerKinds:\n  - {group: example.com, kind: EtcdCluster, plural: etcdclusters}",
        &[(4, "missing field `version`"), (4, "unknown field `plural`")],
    );
}

#[test]
fn reads_off_as_string_and_true_as_boolean() {
    assert_diagnostics(
        "lxcfs: {nodeAffinity: off}\nsidecars: {native: true, templates: [{name: a, annotations: {b: on}}]}",
        &[],
    );
}

#[test]
fn reports_all_errors_in_order_of_lines() {
    assert_diagnostics(
        "\
lxcfs:
  rot: /var/lib/lxcfs
  profile: lxcfs-9
  files: [meminfo, memory, pressure-cpu]
  onlyWithLimits: maybe
sidecars:
  default: [agent, missing]
  templates:
  - name: agent
    containers:
    - name: Agent
      image: ''
      volumeMounts:
      - name: data
        mountPath: data
    colour: red
",
        &[
            (3, "lxcfs.rot: unknown field `rot`"),
            (4, "lxcfs.profile: unknown value `lxcfs-9`"),
            (5, "lxcfs.files[1]: unknown value `memory`"),
            // The unknown item is removed before validation; the index of the next one does not change.
            (5, "lxcfs.files[2]: pressure-cpu requires a newer lxcfs than the profile"),
            (6, "lxcfs.onlyWithLimits: invalid type"),
            (8, "sidecars.default[1]: unknown template \"missing\""),
            (12, "sidecars.templates[0].containers[0].name: \"Agent\" is not a DNS label"),
            (13, "sidecars.templates[0].containers[0].image: is empty"),
            (15, "volumeMounts[0].name: unknown volume \"data\""),
            (16, "volumeMounts[0].mountPath: \"data\" is not an absolute path"),
            (17, "sidecars.templates[0].colour: unknown field"),
        ],
    );
}

#[test]
fn rejects_invalid_yaml_list_and_empty_file() {
    assert!(diagnostics("a: [1,\nb: }")[0].contains("invalid YAML"));
    assert!(!diagnostics("- a").is_empty());
    assert!(!diagnostics("").is_empty());
    assert!(diagnostics("lxcfs: {}")[0].contains("apiVersion is missing"));
    let with_kind = |kind: &str| format!("apiVersion: etcd-guard.io/v1alpha1\nkind: {kind}\n");
    assert!(Config::read(&with_kind("Configuration")).is_ok());
    assert!(diagnostics(&with_kind("Config"))[0].contains("expected Configuration"));
    assert!(diagnostics("apiVersion: v1")[0].starts_with("line 1: apiVersion: \"v1\" is not supported"));
    assert!(diagnostics("apiVersion: etcd-guard.io/v1alpha1\nlxcfs: {}\nlxcfs: {}")[0].contains("duplicate"));
}

#[test]
fn rejects_unknown_fields_and_types_in_parts_of_pods() {
    let template = |container: &str| {
        format!("sidecars:\n  templates:\n  - name: a\n    containers:\n    - {container}\n")
    };
    assert_diagnostics(
        &template("{name: a, image: i, volumeMount: []}"),
        &[(6, "volumeMount: is not a field of Kubernetes")],
    );
    assert_diagnostics(&template("{name: a, image: i, ports: [{containerPort: http}]}"), &[(6, "ports[0]")]);
    assert_diagnostics(
        &template("{name: a, image: i, restartPolicy: Always}"),
        &[(6, "is valid only in initContainers")],
    );
    assert_diagnostics(
        &template("{name: a, image: i, livenessProbe: {httpget: {}, exec: {command: [alive]}}}"),
        &[(6, "livenessProbe.httpget")],
    );
    let newer = template("{name: a, image: i, newField: 1}") + "    allowUnknownFields: true\n";
    assert_diagnostics(&newer, &[]);
}

#[test]
fn checks_settings_that_combine_template_and_pod() {
    assert_diagnostics(
        "sidecars:
  templates:
  - name: a
    containers: [{name: c, image: i}]
    transferEnv:
    - {into: [c, d], names: [A]}
    - {container: web}
    overrides: {images: true}
    terminationGracePeriodSeconds: -1
    dnsConfig:
      nameservers: [one.example]
      search: []
    hostAliases:
    - {ip: localhost, hostnames: [a]}
    securityContext: {runAsUser: root}
    annotations: {c.inject.etcd-guard.io/image: mine}
",
        &[
            (7, "sidecars.templates[0].transferEnv[0].into[1]: the template has no container \"d\""),
            (8, "sidecars.templates[0].transferEnv[1].names: is empty"),
            (9, "sidecars.templates[0].overrides.images: unknown field"),
            (10, "sidecars.templates[0].terminationGracePeriodSeconds: invalid value"),
            (12, "dnsConfig.nameservers[0]: \"one.example\" is not an IP address"),
            (13, "dnsConfig.search: is not a field of Kubernetes"),
            (15, "hostAliases[0].ip: \"localhost\" is not an IP address"),
            (16, "securityContext.runAsUser: invalid type"),
            (17, "controls injection"),
        ],
    );
}

#[test]
fn rejects_conflicting_templates() {
    assert_diagnostics(
        "sidecars:
  templates:
  - {name: a, containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}
  - {name: b, containers: [{name: c, image: j}], volumes: [{name: v, hostPath: {path: /}}]}
  - {name: a}
  - {name: lxcfs, annotations: {etcd-guard.io/inject: x}}
",
        &[
            (5, "container c is also defined by template a"),
            (5, "volume v differs from the volume of that name in template a"),
            (6, "template name a is used more than once"),
            (7, "controls injection"),
            (7, "lxcfs is reserved for the lxcfs section"),
        ],
    );
}

#[test]
fn distinguishes_versions_of_a_template() {
    assert_diagnostics(
        "sidecars:
  default: ['a:1', 'a:3', b]
  unknownTemplate: ignore
  templates:
  - {name: a, version: '1', containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}
  - {name: a, containers: [{name: c, image: j}], volumes: [{name: v, hostPath: {path: /}}]}
  - {name: a, version: '1'}
  - {name: a, version: 'x,y'}
  - {name: b, version: '1'}
  - {name: b, version: '2'}
",
        &[
            (3, "sidecars.default[1]: unknown template \"a:3\""),
            (3, "sidecars.default[2]: unknown template \"b\""),
            (4, "unknown value `ignore`"),
            (8, "template name a:1 is used more than once"),
            (9, "\"x,y\" is not a version"),
            (10, "one of the templates named b must have no version"),
            (11, "one of the templates named b must have no version"),
        ],
    );
}

#[test]
fn checks_lifespan_pod_names_over_commit_and_lxcfs() {
    assert_diagnostics(
        "lifespan: {least: 5, most: 2}
podNames: {forbiddenWords: [Bad, '']}
overCommit:
  most: 3
  nodes:
  - {selector: {}, cpu: 4, memory: 0.5}
lxcfs:
  root: lxcfs
  repairable: true
  match: {}
",
        &[
            (2, "lifespan.most: is less than lifespan.least, 5"),
            (3, "\"Bad\" matches no name"),
            (3, "is empty, which would match every name"),
            (7, "overCommit.nodes[0].cpu: 4 is greater than"),
            (7, "overCommit.nodes[0].memory: 0.5 is not a factor"),
            (9, "is not an absolute path"),
            (10, "would expose all of"),
            (11, "requires a namespaceSelector"),
        ],
    );
    assert_diagnostics(
        "lxcfs: {root: /var/lib/lxcfs, repairable: true}",
        &[(2, "would expose all of \"/var/lib\"")],
    );
}

#[test]
fn rejects_unknown_policies_and_defaults_below_floor() {
    assert_diagnostics(
        "guard: {defaults: {leader: transfer, mode: audit}, floor: {leader: transfer, breakGlass: deny}}",
        &[],
    );
    assert_diagnostics(
        "guard:
  defaults:
    leader: transfer
    singleMember: no
    mode: audit
  floor:
    leader: deny
    mode: enforce
    ephemeral: deny
",
        &[
            (
                4,
                "guard.defaults.leader: transfer is less strict than guard.floor.leader, deny: remove it here, or lower the floor",
            ),
            (5, "guard.defaults.singleMember: unknown value `no`, expected `allow` or `deny`"),
            (
                6,
                "guard.defaults.mode: audit is less strict than guard.floor.mode, enforce: remove it here, or lower the floor",
            ),
            (10, "guard.floor.ephemeral: unknown field"),
        ],
    );
    assert_diagnostics("guard: {defaults: {leader: auto}, floor: {leader: auto}, programs: [argocd]}", &[]);
    assert_diagnostics("guard: {floor: {leader: deny, minVoters: 3}}", &[]);
    assert_diagnostics(
        "guard: {defaults: {leader: auto, minVoters: 1}, floor: {leader: deny, minVoters: 3}}",
        &[
            (
                2,
                "guard.defaults.leader: auto is less strict than guard.floor.leader, deny: remove it here, or lower the floor",
            ),
            (
                2,
                "guard.defaults.minVoters: 1 is less strict than guard.floor.minVoters, 3: remove it here, or lower the floor",
            ),
        ],
    );
    assert_diagnostics(
        "guard: {defaults: {leader: transfer}, floor: {leader: auto}, programs: [\"\"]}",
        &[
            (
                2,
                "guard.defaults.leader: transfer is less strict than guard.floor.leader, auto: remove it here, or lower the floor",
            ),
            (2, "guard.programs: \"\" is not the name of a user, with 1 to 253 characters"),
        ],
    );
    assert_diagnostics(
        "guard: {floor: {leader: allow}}",
        &[(2, "guard.floor.leader: unknown value `allow`, expected one of `transfer`, `auto`, `deny`")],
    );
}
