//! Tests of the durability of the write-ahead log.

use serde_json::json;

use super::{
    tests::{pod, read_pod},
    *,
};

#[test]
fn requires_persistent_volume_for_the_write_ahead_log() {
    let member = |args: serde_json::Value, env: serde_json::Value| {
        let mut pod = pod(&json!({
            "name": "etcd",
            "image": "etcd",
            "args": args,
            "env": env,
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "log", "mountPath": "/log"},
                {"name": "disk", "mountPath": "/disk"}
            ]
        }));
        let log = json!({"name": "log", "persistentVolumeClaim": {"claimName": "log-etcd-1"}});
        let disk = json!({"name": "disk", "hostPath": {"path": "/srv/etcd"}});
        pod.spec.volumes.extend([log, disk].map(|volume| serde_json::from_value(volume).unwrap()));
        let member = read_pod(&pod).unwrap();
        (member.storage, member.claims.join(" "))
    };
    let with_flag = |dir: &str| member(json!(["--data-dir=/data/etcd", "--wal-dir", dir]), json!([]));
    assert_eq!(with_flag("/data/wal"), (Storage::Persistent, String::from("data-etcd-1")));
    assert_eq!(with_flag("/log"), (Storage::Persistent, String::from("data-etcd-1 log-etcd-1")));
    assert_eq!(with_flag("/tmp/wal"), (Storage::Ephemeral, String::new()));
    assert_eq!(with_flag("/var/wal"), (Storage::Ephemeral, String::new()), "the container's file system");
    assert_eq!(with_flag("/disk").0, Storage::OnNode);
    let env = json!([{"name": "ETCD_WAL_DIR", "value": "/tmp/wal"}]);
    assert_eq!(member(json!(["--data-dir=/data"]), env.clone()).0, Storage::Ephemeral);
    assert_eq!(member(json!([]), env).0, Storage::Ephemeral, "the data directory is not set");
    assert_eq!(member(json!(["--data-dir=/tmp", "--wal-dir=/log"]), json!([])).0, Storage::Ephemeral);
}
