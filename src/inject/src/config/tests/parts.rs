//! Values that an API server would reject in every pod are errors of the file.

use super::{super::Config, diagnostics::assert_diagnostics};

fn template(parts: &str) -> String {
    format!("sidecars:\n  templates:\n  - name: a\n{parts}")
}

#[test]
fn rejects_invalid_quantities_in_all_parts_of_a_template() {
    assert_diagnostics(
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
    - {name: d, image: i, resources: {requests: {ephemeral-storage: '', cpu: 1, hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 2Mi}}}
    volumes:
    - {name: v, emptyDir: {sizeLimit: lots}}
    - {name: w, downwardAPI: {items: [{path: p, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1x}}]}}
    - name: x
      ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: ten}}}}}
    appContainers:
      env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: two}}}]
",
        ),
        &[
            (10, "sidecars.templates[0].containers[0].resources.limits.memory: \"64Mb\" is not a quantity"),
            (11, "containers[0].resources.limits.cpu: -1 is negative"),
            (13, "containers[0].resources.limits.memroy: is not a resource name"),
            (14, "containers[0].resources.requests.cpu: invalid type"),
            (14, "containers[0].resources.requests.memory: \"1 Gi\" is not a quantity"),
            (16, "containers[0].env[0].valueFrom.resourceFieldRef.divisor: \"one\" is not a quantity"),
            (18, "initContainers[0].resources.requests.ephemeral-storage: \"\" is not a quantity"),
            (20, "volumes[0].emptyDir.sizeLimit: \"lots\" is not a quantity"),
            (21, "volumes[1].downwardAPI.items[0].resourceFieldRef.divisor: \"1x\" is not a quantity"),
            (23, "volumes[2].ephemeral.volumeClaimTemplate.spec.resources.requests.storage: \"ten\""),
            (25, "appContainers.env[0].valueFrom.resourceFieldRef.divisor: \"two\" is not a quantity"),
        ],
    );
}

#[test]
fn converts_numeric_quantities_to_strings() {
    let text = template(
        "    containers: [{name: c, image: i, resources: {limits: {cpu: 1}, requests: {cpu: 0.5}, claims: [{name: r}]}}]
    volumes: [{name: v, emptyDir: {sizeLimit: 1024}}]
",
    );
    let config = Config::read(&format!("apiVersion: etcd-guard.io/v1alpha1\n{text}"))
        .unwrap_or_else(|diagnostics| panic!("{diagnostics:#?}"));
    let template = &config.sidecars.templates[0];
    let resources = &template.containers[0]["resources"];
    assert_eq!((&resources["limits"]["cpu"], &resources["requests"]["cpu"]), (&"1".into(), &"0.5".into()));
    assert_eq!(template.volumes[0]["emptyDir"]["sizeLimit"], "1024");
}

#[test]
fn reports_all_errors_of_a_container_and_no_others() {
    assert_diagnostics(
        &template("    containers:\n    - {name: a, image: 5, workingDir: 6, volumeMount: []}\n"),
        &[
            (6, "containers[0].image: invalid type"),
            (6, "containers[0].volumeMount: is not a field of Kubernetes"),
            (6, "containers[0].workingDir: invalid type"),
        ],
    );
    // The indexes are those of the file.
    assert_diagnostics(
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
            (11, "containers[0].env[1].valu: is not a field of Kubernetes"),
            (12, "containers[0].volumeMounts[0].mountPath: invalid type"),
            (12, "containers[0].volumeMounts[0].name: invalid type"),
            (13, "containers[1]: invalid type"),
            (14, "volumes[0].name: invalid type"),
            (15, "hostAliases[0].ip: invalid type"),
        ],
    );
}

#[test]
fn rejects_names_keys_and_values_of_wrong_syntax() {
    let long = "a".repeat(64);
    assert_diagnostics(
        &format!(
            "lxcfs: {{nodeLabel: {{key: lxcfs ready, value: not yet}}}}
lifespan: {{label: /days, taint: bad key}}
overCommit: {{label: ''}}
{}",
            template(&format!(
                "    containers:
    - {{name: {long}, image: i, volumeMounts: [{{name: v}}], env: [{{name: A=B}}, {{}}]}}
    volumes: [{{name: v}}, {{name: -w}}]
    labels: {{a b: c, d: e f, Example.com/a: b, example.com/a/b: c, '': x, {long}: y, z: {long}}}
    annotations: {{a b: c d, Example.com/a: anything at all}}
"
            ))
        ),
        &[
            (2, "lxcfs.nodeLabel.key: \"lxcfs ready\" is not a qualified name: its name part"),
            (2, "lxcfs.nodeLabel.value: \"not yet\" is not a label value"),
            (3, "lifespan.label: \"/days\" is not a qualified name: its prefix part"),
            (3, "lifespan.taint: \"bad key\" is not a qualified name"),
            (4, "overCommit.label: is empty"),
            (9, "containers[0].env[0].name: \"A=B\" contains '='"),
            (9, "containers[0].env[1].name: is missing"),
            (9, "containers[0].name: \"aaa"),
            (9, "containers[0].volumeMounts[0].mountPath: \"\" is not an absolute path"),
            (10, "volumes[1].name: \"-w\" is not a DNS label"),
            (11, "labels.: is empty"),
            (11, "labels.a b: \"a b\" is not a qualified name"),
            (11, &format!("labels.{long}: ")),
            (11, "labels.d: \"e f\" is not a label value"),
            (11, "labels.z: \"aaa"),
            (11, "labels[\"Example.com/a\"]: \"Example.com/a\" is not a qualified name: its prefix part"),
            (11, "labels[\"example.com/a/b\"]: \"example.com/a/b\" is not a qualified name"),
            (12, "annotations.a b: \"a b\" is not a qualified name"),
        ],
    );
}

#[test]
fn rejects_values_that_kubernetes_does_not_have() {
    let parts = "    containers:
    - {name: c, image: i, imagePullPolicy: always, ports: [{containerPort: 1, protocol: tcp}]}
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
        (11, "tolerations[3].key: \"a b\" is not a qualified name"),
        (11, "tolerations[3].value: must be empty where operator is Exists"),
        (12, "tolerations[4].effect: must be NoExecute where tolerationSeconds is set"),
        (12, "tolerations[4].value: \"b c\" is not a label value"),
        (15, "tolerations[7].key: invalid type"),
    ];
    let values = [
        (
            6,
            "containers[0].imagePullPolicy: unknown value \"always\": expected one of Always, IfNotPresent, Never",
        ),
        (6, "containers[0].ports[0].protocol: unknown value \"tcp\": expected one of TCP, UDP, SCTP"),
        (8, "tolerations[0].operator: unknown value \"exists\": expected one of Equal, Exists"),
        (9, "tolerations[1].effect: unknown value \"noSchedule\""),
    ];
    assert_diagnostics(&template(parts), &[&values[..], &later].concat());
    // A later release of Kubernetes may have more values.
    assert_diagnostics(&template(&format!("{parts}    allowUnknownFields: true\n")), &later);
}
