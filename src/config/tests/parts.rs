//! What an apiserver would refuse in every pod that gets it is a mistake of the file.

use super::{super::Config, mistakes::assert_mistakes};

fn template(parts: &str) -> String {
    format!("sidecars:\n  templates:\n  - name: a\n{parts}")
}

#[test]
fn quantities_must_parse_wherever_a_template_has_one() {
    assert_mistakes(
        &template(
            "    containers:
    - name: c
      image: i
      resources:
        limits:
          memory: 64Mb
          cpu: -1
          example.com/gpu: 1
          memroy: 1Gi
        requests: {cpu: [1], memory: 1 Gi}
      env:
      - {name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: one}}}
    initContainers:
    - {name: d, image: i, resources: {requests: {ephemeral-storage: '', hugepages-2Mi: 2Mi}}}
    volumes:
    - {name: v, emptyDir: {sizeLimit: lots}}
    - {name: w, downwardAPI: {items: [{path: p, resourceFieldRef: {resource: limits.cpu, divisor: 1x}}]}}
    - name: x
      ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: ten}}}}}
    appContainers:
      env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: two}}}]
",
        ),
        &[
            (10, "sidecars.templates[0].containers[0].resources.limits.memory: \"64Mb\" is no quantity"),
            (11, "containers[0].resources.limits.cpu: -1 is less than 0"),
            (13, "containers[0].resources.limits.memroy: is no resource"),
            (14, "containers[0].resources.requests.cpu: invalid type"),
            (14, "containers[0].resources.requests.memory: \"1 Gi\" is no quantity"),
            (16, "containers[0].env[0].valueFrom.resourceFieldRef.divisor: \"one\" is no quantity"),
            (18, "initContainers[0].resources.requests.ephemeral-storage: \"\" is no quantity"),
            (20, "volumes[0].emptyDir.sizeLimit: \"lots\" is no quantity"),
            (21, "volumes[1].downwardAPI.items[0].resourceFieldRef.divisor: \"1x\" is no quantity"),
            (23, "volumes[2].ephemeral.volumeClaimTemplate.spec.resources.requests.storage: \"ten\""),
            (25, "appContainers.env[0].valueFrom.resourceFieldRef.divisor: \"two\" is no quantity"),
        ],
    );
}

#[test]
fn a_number_is_a_quantity_and_becomes_its_text() {
    let text = template(
        "    containers: [{name: c, image: i, resources: {limits: {cpu: 1}, requests: {cpu: 0.5}, claims: [{name: r}]}}]
    volumes: [{name: v, emptyDir: {sizeLimit: 1024}}]
",
    );
    let config = Config::read(&format!("apiVersion: etcd-guard.io/v1alpha1\n{text}"))
        .unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    let template = &config.sidecars.templates[0];
    let resources = &template.containers[0]["resources"];
    assert_eq!((&resources["limits"]["cpu"], &resources["requests"]["cpu"]), (&"1".into(), &"0.5".into()));
    assert_eq!(template.volumes[0]["emptyDir"]["sizeLimit"], "1024");
}

#[test]
fn all_mistakes_of_a_container_are_told_and_none_that_it_has_not() {
    assert_mistakes(
        &template("    containers:\n    - {name: a, image: 5, workingDir: 6, volumeMount: []}\n"),
        &[
            (6, "containers[0].image: invalid type"),
            (6, "containers[0].volumeMount: is no field that Kubernetes knows"),
            (6, "containers[0].workingDir: invalid type"),
        ],
    );
    // Each keeps its number.
    assert_mistakes(
        &template(
            "    containers:
    - name: a
      image: i
      command: [1, run, 2]
      env:
      - 5
      - {name: A, valu: b}
      volumeMounts: [{name: 1, mountPath: 2}]
    - 7
    volumes: [{name: 8}]
    hostAliases: [{ip: 9}]
",
        ),
        &[
            (8, "containers[0].command[0]: invalid type"),
            (8, "containers[0].command[2]: invalid type"),
            (10, "containers[0].env[0]: invalid type"),
            (11, "containers[0].env[1].valu: is no field that Kubernetes knows"),
            (12, "containers[0].volumeMounts[0].mountPath: invalid type"),
            (12, "containers[0].volumeMounts[0].name: invalid type"),
            (13, "containers[1]: invalid type"),
            (14, "volumes[0].name: invalid type"),
            (15, "hostAliases[0].ip: invalid type"),
        ],
    );
}

#[test]
fn names_keys_and_values_must_have_the_form_that_an_apiserver_takes() {
    let long = "a".repeat(64);
    assert_mistakes(
        &format!(
            "lxcfs: {{nodeLabel: {{key: lxcfs ready, value: not yet}}}}
lifespan: {{label: /days, taint: bad key}}
overCommit: {{label: ''}}
{}",
            template(&format!(
                "    containers:
    - {{name: {long}, image: ' i', volumeMounts: [{{name: v, mountPath: '/a:b'}}, {{name: v}}], env: [{{name: A=B}}, {{}}]}}
    volumes: [{{name: v}}, {{name: -w}}]
    labels: {{a b: c, d: e f, Example.com/a: b, example.com/a/b: c, '': x, {long}: y, z: {long}}}
    annotations: {{a b: c d, Example.com/a: anything at all}}
"
            ))
        ),
        &[
            (2, "lxcfs.nodeLabel.key: \"lxcfs ready\" is no qualified name: its name part"),
            (2, "lxcfs.nodeLabel.value: \"not yet\" is no label value"),
            (3, "lifespan.label: \"/days\" is no qualified name: its prefix part"),
            (3, "lifespan.taint: \"bad key\" is no qualified name"),
            (4, "overCommit.label: is empty"),
            (9, "containers[0].env[0].name: \"A=B\" has a '='"),
            (9, "containers[0].env[1].name: is empty"),
            (9, "containers[0].image: \" i\" begins or ends with a blank"),
            (9, "containers[0].name: \"aaa"),
            (9, "containers[0].volumeMounts[0].mountPath: \"/a:b\" has a ':'"),
            (9, "containers[0].volumeMounts[1].mountPath: \"\" is no absolute path"),
            (10, "volumes[1].name: \"-w\" is no name"),
            (11, "labels.: is empty"),
            (11, "labels.a b: \"a b\" is no qualified name"),
            (11, &format!("labels.{long}: ")),
            (11, "labels.d: \"e f\" is no label value"),
            (11, "labels.z: \"aaa"),
            (11, "labels[\"Example.com/a\"]: \"Example.com/a\" is no qualified name: its prefix part"),
            (11, "labels[\"example.com/a/b\"]: \"example.com/a/b\" is no qualified name"),
            (12, "annotations.a b: \"a b\" is no qualified name"),
        ],
    );
}

#[test]
fn words_must_be_those_that_kubernetes_knows() {
    let parts = "    containers:
    - {name: c, image: i, imagePullPolicy: always, terminationMessagePolicy: file, ports: [{containerPort: 1, protocol: tcp}]}
    tolerations:
    - {key: a, operator: exists}
    - {key: a, effect: noSchedule}
    - {operator: Equal, value: b}
    - {key: a b, operator: Exists, value: c}
    - {key: a, value: b c, tolerationSeconds: 5}
    - {operator: Exists}
    - {key: example.com/a, value: b, effect: NoExecute, tolerationSeconds: 5}
    - {key: 5}
";
    let later = [
        (10, "tolerations[2].operator: must be Exists where key is empty"),
        (11, "tolerations[3].key: \"a b\" is no qualified name"),
        (11, "tolerations[3].value: must be empty where operator is Exists"),
        (12, "tolerations[4].effect: must be NoExecute where tolerationSeconds is set"),
        (12, "tolerations[4].value: \"b c\" is no label value"),
        (15, "tolerations[7].key: invalid type"),
    ];
    let words = [
        (6, "containers[0].imagePullPolicy: \"always\" is not known: Always, IfNotPresent, Never are"),
        (6, "containers[0].ports[0].protocol: \"tcp\" is not known: TCP, UDP, SCTP are"),
        (6, "containers[0].terminationMessagePolicy: \"file\" is not known"),
        (8, "tolerations[0].operator: \"exists\" is not known: Equal, Exists are"),
        (9, "tolerations[1].effect: \"noSchedule\" is not known"),
    ];
    assert_mistakes(&template(parts), &[&words[..], &later].concat());
    // A later release may know more of them.
    assert_mistakes(&template(&format!("{parts}    allowUnknownFields: true\n")), &later);
}
