//! Every mistake of a file is told, each with its line.

use super::super::Config;

fn mistakes(text: &str) -> Vec<String> {
    match Config::read(text) {
        Ok(_) => Vec::new(),
        Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
pub(super) fn assert_mistakes(sections: &str, expected: &[(u64, &str)]) {
    let found = mistakes(&format!("apiVersion: etcd-guard.io/v1alpha1\n{sections}"));
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (line, part)) in found.iter().zip(expected) {
        assert!(found.starts_with(&format!("line {line}: ")) && found.contains(part), "{found:?} {part:?}");
    }
}

#[test]
fn no_file_and_a_file_of_a_version_alone_are_good() {
    assert_eq!(Config::default().lxcfs.root, "/var/lib/lxcfs");
    assert_mistakes("", &[]);
}

/// It goes to terminals and logs.
#[test]
fn a_mistake_is_one_line_whatever_the_file_has_in_it() {
    assert_mistakes(
        "guard: {floor: {\"a.\\n\\e[31m\": 1}}\nlxcfs: {profile: \"\\n\"}",
        &[(2, r#"guard.floor["a.\n\u{1b}[31m"]: unknown field `a.\n\u{1b}[31m`"#), (3, r"\n")],
    );
    assert!(mistakes("\u{e9}: 1").concat().contains('\u{e9}'));
}

#[test]
fn off_is_a_word_and_true_is_not() {
    assert_mistakes(
        "lxcfs: {nodeAffinity: off}\nsidecars: {native: true, templates: [{name: a, annotations: {b: on}}]}",
        &[],
    );
}

#[test]
fn all_mistakes_of_a_file_are_told_in_the_order_of_their_lines() {
    assert_mistakes(
        "\
lxcfs:
  rot: /var/lib/lxcfs
  profile: lxcfs-9
  files: [meminfo, memory, pressure-cpu]
  onlyWithLimits: maybe
sidecars:
  default: [agent, nobody]
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
            (4, "lxcfs.profile: unknown variant `lxcfs-9`"),
            (5, "lxcfs.files[1]: unknown variant `memory`"),
            // What is unknown is taken out before the rest is looked at, and the rest keeps its number.
            (5, "lxcfs.files[2]: pressure-cpu needs a newer lxcfs than the profile"),
            (6, "lxcfs.onlyWithLimits: invalid type"),
            (8, "sidecars.default[1]: there is no template \"nobody\""),
            (12, "sidecars.templates[0].containers[0].name: \"Agent\" is no name"),
            (13, "sidecars.templates[0].containers[0].image: is empty"),
            (15, "volumeMounts[0].name: there is no volume \"data\""),
            (16, "volumeMounts[0].mountPath: \"data\" is no absolute path"),
            (17, "sidecars.templates[0].colour: unknown field"),
        ],
    );
}

#[test]
fn a_file_that_is_no_yaml_no_map_or_empty_is_told_so() {
    assert!(mistakes("a: [1,\nb: }")[0].contains("no YAML that can be read"));
    assert!(!mistakes("- a").is_empty());
    assert!(!mistakes("").is_empty());
    assert!(mistakes("lxcfs: {}")[0].contains("names no apiVersion"));
    assert!(mistakes("apiVersion: v1")[0].starts_with("line 1: apiVersion: \"v1\" is not known"));
    assert!(mistakes("apiVersion: etcd-guard.io/v1alpha1\nlxcfs: {}\nlxcfs: {}")[0].contains("duplicate"));
}

#[test]
fn parts_of_pods_must_be_what_kubernetes_knows() {
    let template = |container: &str| {
        format!("sidecars:\n  templates:\n  - name: a\n    containers:\n    - {container}\n")
    };
    assert_mistakes(
        &template("{name: a, image: i, volumeMount: []}"),
        &[(6, "volumeMount: is no field that Kubernetes knows")],
    );
    assert_mistakes(&template("{name: a, image: i, ports: [{containerPort: http}]}"), &[(6, "ports[0]")]);
    assert_mistakes(
        &template("{name: a, image: i, restartPolicy: Always}"),
        &[(6, "is for initContainers only")],
    );
    assert_mistakes(
        &template("{name: a, image: i, livenessProbe: {httpget: {}}}"),
        &[(6, "livenessProbe.httpget")],
    );
    let tomorrow = template("{name: a, image: i, fieldOfTomorrow: 1}") + "    allowUnknownFields: true\n";
    assert_mistakes(&tomorrow, &[]);
}

#[test]
fn what_a_template_takes_from_a_pod_or_asks_of_it_is_checked() {
    assert_mistakes(
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
      nameservers: [one.example, 192.0.2.1, 192.0.2.2, 192.0.2.3]
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
            (12, "dnsConfig.nameservers: has more than 3"),
            (12, "dnsConfig.nameservers[0]: \"one.example\" is no IP address"),
            (13, "dnsConfig.search: is no field that Kubernetes knows"),
            (15, "hostAliases[0].ip: \"localhost\" is no IP address"),
            (16, "securityContext.runAsUser: invalid type"),
            (17, "decides what is injected"),
        ],
    );
}

#[test]
fn templates_that_contradict_each_other_are_refused() {
    assert_mistakes(
        "sidecars:
  templates:
  - {name: a, containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}
  - {name: b, containers: [{name: c, image: j}], volumes: [{name: v, hostPath: {path: /}}]}
  - {name: a}
  - {name: lxcfs, annotations: {etcd-guard.io/inject: x}}
",
        &[
            (5, "template a has a container c as well"),
            (5, "template a has another volume v"),
            (6, "a is the name of another template"),
            (7, "decides what is injected"),
            (7, "lxcfs is the name of the section"),
        ],
    );
}

#[test]
fn versions_of_a_template_are_told_apart() {
    assert_mistakes(
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
            (3, "sidecars.default[1]: there is no template \"a:3\""),
            (3, "sidecars.default[2]: there is no template \"b\""),
            (4, "unknown variant `ignore`"),
            (8, "a:1 is the name of another template"),
            (9, "\"x,y\" is no version"),
            (10, "of several templates b, one has no version"),
            (11, "of several templates b, one has no version"),
        ],
    );
}

#[test]
fn the_small_sections_are_checked_as_well() {
    assert_mistakes(
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
            (2, "lifespan.most: is less than the least"),
            (3, "no name contains \"Bad\""),
            (3, "is empty: every name contains it"),
            (7, "overCommit.nodes[0].cpu: 4 is more than"),
            (7, "overCommit.nodes[0].memory: 0.5 is no factor"),
            (9, "is no absolute path"),
            (10, "would show all of"),
            (11, "needs a namespaceSelector"),
        ],
    );
    assert_mistakes(
        "lxcfs: {root: /var/lib/lxcfs, repairable: true}",
        &[(2, "would show all of \"/var/lib\"")],
    );
}

#[test]
fn policies_are_words_and_the_servers_own_are_not_below_its_floor() {
    assert_mistakes(
        "guard: {defaults: {leader: transfer, mode: audit}, floor: {leader: transfer, breakGlass: deny}}",
        &[],
    );
    assert_mistakes(
        "guard:
  defaults:
    leader: allow
    singleMember: no
    mode: audit
  floor:
    leader: transfer
    mode: enforce
    ephemeral: deny
",
        &[
            (4, "guard.defaults.leader: allow is below guard.floor.leader, transfer"),
            (5, "guard.defaults.singleMember: unknown variant `no`, expected `allow` or `deny`"),
            (6, "guard.defaults.mode: audit is below guard.floor.mode, enforce"),
            (10, "guard.floor.ephemeral: unknown field"),
        ],
    );
    assert_mistakes("guard: {floor: {leader: allow}}", &[]);
}
