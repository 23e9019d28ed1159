//! etcd's configuration file.
//!
//! Source: etcd `server/embed/config.go`: the file is YAML, and most keys are the names of the flags. The TLS settings for
//! clients are in `client-transport-security`, with the names of their flags.

use std::collections::BTreeMap;

use serde_json::Value;

/// The mapping with the TLS settings for clients.
const CLIENT_TLS: &str = "client-transport-security";

/// Returns the settings in a configuration file, by the names of their flags. The error contains no part of the file.
pub(super) fn read(content: &str) -> Result<BTreeMap<String, String>, String> {
    let file: BTreeMap<String, Value> = serde_saphyr::from_str(content)
        .map_err(|_| String::from("the configuration file of etcd is not a mapping in YAML"))?;
    let tls = file.get(CLIENT_TLS).and_then(Value::as_object).cloned().unwrap_or_default();
    let settings = file.into_iter().chain(tls);
    Ok(settings.filter_map(|(name, value)| Some((name, setting(&value)?))).collect())
}

/// Returns the text of a scalar. A template that an init container expands has no known value.
fn setting(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    let is_template = text.contains("{{") || (text.contains('$') && !text.contains("://"));
    (!is_template).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
name: etcd-0
data-dir: /var/lib/etcd
wal-dir: ${WAL_DIR}
listen-client-urls: https://0.0.0.0:2379
advertise-client-urls: https://$(POD_IP):2379
quota-backend-bytes: 0
initial-cluster: etcd-0=https://etcd-0.etcd:2380,etcd-1=https://etcd-1.etcd:2380
client-transport-security:
  cert-file: /tls/server.crt
  key-file: /tls/server.key
  client-cert-auth: true
  trusted-ca-file: /tls/ca.crt
  auto-tls: false
peer-transport-security: {cert-file: /peer/tls.crt}
";

    #[test]
    fn reads_settings_and_tls_of_clients() {
        let settings = read(FILE).unwrap();
        let get = |name: &str| settings.get(name).map(String::as_str);
        assert_eq!(get("name"), Some("etcd-0"));
        assert_eq!(get("cert-file"), Some("/tls/server.crt"));
        assert_eq!(get("client-cert-auth"), Some("true"));
        assert_eq!(get("auto-tls"), Some("false"));
        assert_eq!(get("advertise-client-urls"), Some("https://$(POD_IP):2379"));
        assert_eq!(get("wal-dir"), None, "a template has no known value");
        assert_eq!(get("quota-backend-bytes"), Some("0"));
    }

    #[test]
    fn rejects_other_texts_without_quoting_them() {
        for text in ["password", "- password", "a: [password", "{{ password }}"] {
            assert!(!read(text).unwrap_err().contains("password"), "{text}");
        }
        assert_eq!(read("{}"), Ok(BTreeMap::new()));
    }
}
