//! Nodes that offer more CPU or memory than they have: what becomes of an update of a node's status.
//!
//! Several writers send a node's status, and most of them send what they read, which is the raised value. So what was
//! raised, and from what, is recorded beside it: a value that equals what was written here is not raised again.
//!
//! A number that is neither recorded nor sent anew may be the machine's, or one that was raised and whose record somebody
//! removed from the node: the two cannot be told apart. It is then written one unit smaller. The kubelet, which sends what
//! differs from the node that it reads, so says what the machine has, and that is what gets raised.
//!
//! Sources: kubernetes `pkg/kubelet/kubelet_node_status.go`, `pkg/util/node/node.go`. Pure; knows nothing of reviews.

mod origin;
mod record;
#[cfg(test)]
mod tests;

pub use self::record::RECORD;
use self::{
    origin::Origin,
    record::{Record, Resource},
};
use crate::{
    config::{Factor, Labels, OverCommit},
    json::Json,
    k8s::quantity::Quantity,
    one_line::one_line,
    patch::{Draft, Finished, Patch, PatchError, pointer},
};

/// What became of a node's status.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The node as it should be; absent if it stays as it came.
    pub node: Option<Json<'a>>,
    /// What leads there; empty if nothing is to be done.
    pub patch: Patch,
    /// What was done, or why nothing was.
    pub reason: Reason,
    /// What an administrator should know.
    pub warning: Option<String>,
}

/// What was done with a node's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It offers factor times what the node has.
    OverCommitted,
    /// What was raised before was put right.
    Restored,
    /// Nobody asks for this node to offer more.
    NotOverCommitted,
    /// Whose numbers these are is not known: the kubelet is made to say its own.
    KubeletAsked,
    /// The record, the label or the status is not readable: the status stays as it was sent.
    Malformed,
    /// The patch did not lead where it should.
    PatchFailed,
}

/// The two numbers of a resource: what pods may use, and all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amounts {
    allocatable: Quantity,
    capacity: Quantity,
}

/// The status that a writer sends for `node`, put right; `stored` is the node as it is stored. Without settings nothing
/// is raised, and what was raised before is put back.
#[must_use]
pub fn over_commit<'a>(
    node: Json<'a>,
    stored: Option<&Json<'_>>,
    settings: Option<&OverCommit>,
) -> Outcome<'a> {
    let mut draft = Draft::new(node);
    match change(&mut draft, stored, settings) {
        Ok((reason, warning)) => match draft.finish() {
            Ok(Finished { object, patch }) => {
                let node = (!patch.is_empty()).then_some(object);
                Outcome { node, patch, reason, warning }
            }
            Err(error) => Outcome::unchanged(Reason::PatchFailed, &error.to_string()),
        },
        Err(Stop::Malformed(text)) => Outcome::unchanged(Reason::Malformed, &text),
        Err(Stop::Failed(error)) => Outcome::unchanged(Reason::PatchFailed, &error.to_string()),
    }
}

enum Stop {
    Malformed(String),
    Failed(PatchError),
}

fn change(
    draft: &mut Draft<'_>,
    stored: Option<&Json<'_>>,
    settings: Option<&OverCommit>,
) -> Result<(Reason, Option<String>), Stop> {
    let sent = Record::of(draft.object())?;
    // A writer may have dropped or changed the record; what is stored was written with the stored one.
    let known = stored.map(Record::of).transpose()?.unwrap_or_default();
    let (factors, warning) = factors(draft.object(), settings)?;
    let (mut record, mut raised) = (Record::default(), true);
    for (resource, factor) in factors {
        let Some(incoming) = amounts(draft.object(), resource)? else { continue };
        // What is stored and cannot be read is not what was sent.
        let stored = stored.and_then(|it| amounts(it, resource).ok()?);
        let origin = Origin::of(resource, incoming, stored, [&sent, &known]);
        let wanted = if factor == Factor::NONE {
            origin.raw_or_as_sent(incoming)
        } else if let Some(raw) = origin.raw() {
            let offered = raw.raised(resource, factor);
            record.set(resource, factor, raw, offered);
            offered
        } else {
            raised = false;
            let asked = if origin.is_asked() { incoming } else { incoming.less_one(resource) };
            record.ask(resource, asked);
            asked
        };
        write(draft, resource, incoming, wanted)?;
    }
    let place = pointer(["metadata", "annotations", RECORD]);
    let reason = if !record.is_empty() {
        draft.rewrite(&place, record.to_text())?;
        if raised { Reason::OverCommitted } else { Reason::KubeletAsked }
    } else if sent.is_empty() && known.is_empty() {
        Reason::NotOverCommitted
    } else {
        draft.take_back(&place)?;
        Reason::Restored
    };
    Ok((reason, warning))
}

/// The factor of each resource, and a warning.
type Factors = ([(Resource, Factor); 2], Option<String>);

/// The factor of each resource of a node, and a warning about a label that says too much.
fn factors(node: &Json<'_>, settings: Option<&OverCommit>) -> Result<Factors, Stop> {
    let unraised = ([(Resource::Cpu, Factor::NONE), (Resource::Memory, Factor::NONE)], None);
    let Some(settings) = settings else { return Ok(unraised) };
    let labels = node.get("metadata").and_then(|it| it.get("labels")).and_then(Json::as_map);
    let labels = labels.into_iter().flatten();
    let labels: Labels = labels
        .filter_map(|(key, value)| Some((key.clone().into_owned(), value.as_str()?.to_owned())))
        .collect();
    // Only the label opts a node in: a record brings its status here as well, and a kubelet may write that itself.
    let Some(text) = labels.get(&settings.label) else { return Ok(unraised) };
    let entry = settings.entry(&labels);
    let mut cpu = entry.map_or(Factor::NONE, |it| it.cpu);
    let memory = entry.map_or(Factor::NONE, |it| it.memory);
    let mut warning = None;
    if !text.is_empty() && text != CONFIGURED {
        let own = Factor::parse(text).ok_or_else(|| {
            Stop::Malformed(format!("label {}: {text:?} is no factor, nor {CONFIGURED:?}", settings.label))
        })?;
        if own > settings.most {
            warning = Some(format!("label {}: {own} was cut down to {}", settings.label, settings.most));
        }
        cpu = own.min(settings.most);
    }
    Ok(([(Resource::Cpu, cpu), (Resource::Memory, memory)], warning))
}

/// The label's value that leaves the factor to the configuration.
const CONFIGURED: &str = "configured";

/// What a status says of a resource; nothing if it lacks one of the two numbers, as that of a new node may.
fn amounts(node: &Json<'_>, resource: Resource) -> Result<Option<Amounts>, Stop> {
    let read = |list: &str| {
        let value = node.get("status").and_then(|it| it.get(list)).and_then(|it| it.get(resource.key()));
        let Some(value) = value.filter(|it| !it.is_null()) else { return Ok(None) };
        let text = value.as_str().map_or_else(|| serde_json::Value::from(value).to_string(), str::to_owned);
        let unreadable =
            || Stop::Malformed(format!("status.{list}.{}: {text:?} is no quantity", resource.key()));
        Quantity::parse(&text).map(Some).ok_or_else(unreadable)
    };
    Ok(read("allocatable")?
        .zip(read("capacity")?)
        .map(|(allocatable, capacity)| Amounts { allocatable, capacity }))
}

fn write(
    draft: &mut Draft<'_>,
    resource: Resource,
    incoming: Amounts,
    wanted: Amounts,
) -> Result<(), PatchError> {
    let lists = [
        ("allocatable", incoming.allocatable, wanted.allocatable),
        ("capacity", incoming.capacity, wanted.capacity),
    ];
    for (list, incoming, wanted) in lists {
        // One amount has many texts: the writer's stays if it means the same.
        if incoming != wanted {
            let place = pointer(["status", list, resource.key()]);
            draft.rewrite(&place, wanted.to_string())?;
        }
    }
    Ok(())
}

// === impl Amounts ===

impl Amounts {
    /// Factor times what pods may use, and what is reserved on top, once.
    fn raised(self, resource: Resource, factor: Factor) -> Self {
        let count = |it| resource.count(it);
        let reserved = (count(self.capacity) - count(self.allocatable)).max(0);
        let allocatable = factor.times(count(self.allocatable));
        let of = |count| resource.quantity(count);
        Self { allocatable: of(allocatable), capacity: of(allocatable.saturating_add(reserved)) }
    }

    /// The smallest step below these: enough to differ from what a machine says of itself. A kubelet with an old cache
    /// may send only one of the two anew, so that they do not go together.
    fn less_one(self, resource: Resource) -> Self {
        let less = |it| resource.quantity((resource.count(it) - 1).max(0));
        let (allocatable, capacity) = (less(self.allocatable), less(self.capacity));
        Self { allocatable: allocatable.min(capacity), capacity }
    }
}

// === impl Outcome ===

impl Outcome<'_> {
    fn unchanged(reason: Reason, warning: &str) -> Self {
        Self { node: None, patch: Patch::default(), reason, warning: Some(one_line(warning)) }
    }
}

// === impl Reason ===

impl Reason {
    /// As it is written everywhere.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::OverCommitted => "OverCommitted",
            Self::Restored => "Restored",
            Self::NotOverCommitted => "NotOverCommitted",
            Self::KubeletAsked => "KubeletAsked",
            Self::Malformed => "Malformed",
            Self::PatchFailed => "PatchFailed",
        }
    }
}

// === impl Stop ===

impl From<PatchError> for Stop {
    fn from(error: PatchError) -> Self {
        Self::Failed(error)
    }
}
