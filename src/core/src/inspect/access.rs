//! The objects that can hold the settings and the credentials of a member, and those among them that the guard needs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    discovery::{
        credential_selection::{CertificateSearch, Selection},
        credential_sources::UsedPart,
        etcd_pod::EtcdPod,
    },
    objects::data_object::{DataKind, DataObject, Secret},
};

/// An object that the guard reads for a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InspectedCredential {
    /// The kind of the object.
    pub kind: DataKind,
    /// The name of the object, in the namespace of the pod.
    pub name: String,
    /// The content that the guard searches: `configuration`, `CA`, `certificates`, `password` or `preStop script`.
    pub purpose: &'static str,
    /// The keys that the pod or an annotation names; empty if only the conventional keys are searched.
    pub keys: Vec<String>,
    /// Whether the object exists; `None` if unknown.
    pub exists: Option<bool>,
    /// Whether the caller may read it; `None` if unknown.
    pub caller_can_read: Option<bool>,
    /// Whether the account of the guard may read it; `None` if unknown.
    pub guard_can_read: Option<bool>,
    /// The keys of the object that the guard uses; empty if its content is unknown.
    pub found: Vec<String>,
    /// Whether the Role permits the guard to read the object. An object is left out only if it is known that it does not
    /// exist, that it holds nothing of use, or that an earlier one is sufficient.
    pub needed: bool,
}

/// The access to an object and its content, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct ObjectState {
    /// Whether the caller may read it.
    pub caller_can_read: Option<bool>,
    /// Whether the account of the guard may read it.
    pub guard_can_read: Option<bool>,
    /// The content.
    pub content: Option<ObjectContent>,
}

/// The content of an object.
#[derive(Clone, Debug)]
pub enum ObjectContent {
    /// The data of the object.
    Found(Secret),
    /// The object does not exist.
    Missing,
}

// === impl InspectedCredential ===

impl InspectedCredential {
    /// The name of the object with its kind.
    pub fn object(&self) -> DataObject {
        DataObject { kind: self.kind, name: self.name.clone() }
    }
}

/// Returns the objects that the guard reads for a member, in the order in which the guard reads them: the configuration
/// file, the sources of certificates, the user, and the scripts of preStop hooks.
pub(super) fn credentials(member: &EtcdPod) -> Vec<InspectedCredential> {
    let new = |object: &DataObject, purpose, keys: Vec<String>| InspectedCredential {
        kind: object.kind,
        name: object.name.clone(),
        purpose,
        keys,
        exists: None,
        caller_can_read: None,
        guard_can_read: None,
        found: Vec::new(),
        needed: true,
    };
    let sources = &member.credentials;
    let file = member.config_file.iter();
    let file = file.map(|file| new(&file.object, "configuration", vec![file.key.clone()]));
    let certificates = sources.tls.iter().map(|source| {
        let purpose = if source.part == UsedPart::Ca { "CA" } else { "certificates" };
        new(&source.object, purpose, source.named_keys())
    });
    let user = sources.user.iter();
    let user = user.map(|source| new(&DataObject::secret(&source.secret), "password", source.named_keys()));
    let scripts = member.stop_scripts.iter().filter_map(|script| script.source.as_ref());
    let scripts = scripts.map(|source| new(&source.object, "preStop script", vec![source.key.clone()]));
    file.chain(certificates).chain(user).chain(scripts).collect()
}

/// Records the states of the objects, and determines which of them the guard needs. `credentials` is the result of
/// [`credentials`] for this member.
pub(super) fn record(
    credentials: &mut [InspectedCredential],
    member: &EtcdPod,
    states: &BTreeMap<DataObject, ObjectState>,
) {
    let unknown = ObjectState::default();
    let mut search = CertificateSearch::new(&member.credentials);
    let mut sources = member.credentials.tls.iter();
    for credential in credentials {
        let source = match credential.purpose {
            "CA" | "certificates" => sources.next(),
            _ => None,
        };
        let state = states.get(&credential.object()).unwrap_or(&unknown);
        credential.caller_can_read = state.caller_can_read;
        credential.guard_can_read = state.guard_can_read;
        credential.found.clear();
        credential.needed = source.is_none_or(|source| search.may_need(source));
        let content = match &state.content {
            None => continue,
            Some(ObjectContent::Missing) => {
                credential.exists = Some(false);
                credential.needed = false;
                continue;
            }
            Some(ObjectContent::Found(content)) => content,
        };
        credential.exists = Some(true);
        credential.found = match source {
            Some(source) if search.needs(source) => {
                let selection = Selection::new(source, content);
                search.add(&selection);
                let pair = selection.pair.into_iter().flat_map(|(certificate, key)| [certificate, key]);
                pair.chain(selection.ca).map(str::to_owned).collect()
            }
            Some(_) => Vec::new(),
            None if credential.purpose == "password" => {
                let user = member.credentials.user.as_ref();
                let key = user.and_then(|source| source.password_key(content));
                key.map(str::to_owned).into_iter().collect()
            }
            None => credential.keys.iter().filter(|key| content.get(key).is_some()).cloned().collect(),
        };
        credential.needed &= !credential.found.is_empty();
    }
}
