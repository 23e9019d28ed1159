//! The committed schema is the one that the types have.

use super::super::schema;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/config.schema.json");

#[test]
fn the_committed_schema_is_current() {
    let committed: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(FILE).expect(FILE)).expect(FILE);
    // Not assert_eq: nobody reads two schemas on one line.
    assert!(committed == schema(), "write it anew: etcd-guard config schema >docs/config.schema.json");
}
