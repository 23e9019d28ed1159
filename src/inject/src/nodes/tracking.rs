//! The known history of a node, and the times at which its status may be written.

use std::time::{Duration, Instant};

/// Time for which a node must have had neither label nor record, until its values count as the machine's. A kubelet
/// corrects values that differ from the machine's every ten seconds, so that it had three opportunities.
const UNRAISED_PERIOD: Duration = Duration::from_secs(30);

/// Minimum interval of reads of a node: it bounds the load if another client changes a node continuously.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(500);

/// Interval after the first write of a node. It doubles with each further write.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum interval of writes: the interval at which a kubelet corrects its values. Replicas with different
/// configurations overwrite each other only at this rate until all of them have reloaded.
const MAX_WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// Time without writes after which the interval is the minimum again.
const QUIET_PERIOD: Duration = Duration::from_secs(30);

/// A node as the watch shows it, and the writes of this process.
#[derive(Debug)]
pub struct TrackedNode {
    history: History,
    version: String,
    /// Whether the node has the label or a record.
    is_concerned: bool,
    /// The time of the next read; `None` if nothing has changed since the last one.
    due: Option<Instant>,
    earliest: Instant,
    interval: Duration,
    last_write: Option<Instant>,
    warning: Option<String>,
}

/// Evidence about the values of a node without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// The node has neither label nor record since this time.
    Unraised { since: Instant },
    /// The node got its label while its values were the machine's, and had no record since.
    NewlyLabelled,
    /// The values may be the machine's or raised ones.
    Unknown,
}

/// Origin of the values of a node without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecorded {
    /// The values are those of the machine.
    Machine,
    /// The values may be the machine's or raised ones.
    Unknown,
    /// The watch has not shown this version of the node yet.
    NotSeen,
}

// === impl TrackedNode ===

impl TrackedNode {
    /// Creates the record of a node that appeared now.
    pub fn new(now: Instant) -> Self {
        Self {
            history: History::Unknown,
            version: String::new(),
            is_concerned: false,
            due: None,
            earliest: now,
            interval: MIN_WRITE_INTERVAL,
            last_write: None,
            warning: None,
        }
    }

    /// Records a change of the node. A node with label or record becomes due.
    pub fn observe(&mut self, version: &str, is_labelled: bool, has_record: bool, now: Instant) {
        version.clone_into(&mut self.version);
        self.history = match (self.history, is_labelled, has_record) {
            (History::Unraised { since }, false, false) => History::Unraised { since },
            (_, false, false) => History::Unraised { since: now },
            (History::Unraised { since }, true, false)
                if now.saturating_duration_since(since) >= UNRAISED_PERIOD =>
            {
                History::NewlyLabelled
            }
            (History::NewlyLabelled, true, false) => History::NewlyLabelled,
            _ => History::Unknown,
        };
        self.is_concerned = is_labelled || has_record;
        self.reevaluate(now);
    }

    /// Schedules a read of a node with label or record, because the node or the configuration has changed.
    pub fn reevaluate(&mut self, now: Instant) {
        if self.is_concerned {
            self.due = Some(self.earliest.max(now));
        }
    }

    /// The time at which the node is evaluated again; `None` if no evaluation is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The origin of the values in this version of the node, if it has no record.
    pub fn unrecorded(&self, version: &str) -> Unrecorded {
        match self.history {
            History::NewlyLabelled if self.version == version => Unrecorded::Machine,
            History::NewlyLabelled => Unrecorded::NotSeen,
            _ => Unrecorded::Unknown,
        }
    }

    /// Records a read without a write.
    pub fn set_read(&mut self, now: Instant) {
        self.due = None;
        self.earliest = now + MIN_READ_INTERVAL;
    }

    /// Records an attempt to write.
    pub fn set_written(&mut self, now: Instant) {
        let is_quiet = self.last_write.is_none_or(|last| now.saturating_duration_since(last) > QUIET_PERIOD);
        self.interval =
            if is_quiet { MIN_WRITE_INTERVAL } else { (self.interval * 2).min(MAX_WRITE_INTERVAL) };
        self.last_write = Some(now);
        self.due = None;
        self.earliest = now + self.interval;
    }

    /// Schedules another read.
    pub fn retry(&mut self) {
        self.due = Some(self.earliest);
    }

    /// Whether this warning differs from the previous one.
    pub fn is_new_warning(&mut self, warning: Option<&str>) -> bool {
        let is_new = warning.is_some() && self.warning.as_deref() != warning;
        self.warning = warning.map(str::to_owned);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn seen(changes: &[(u32, bool, bool)]) -> TrackedNode {
        let start = Instant::now();
        let mut node = TrackedNode::new(start);
        for (version, (at, is_labelled, has_record)) in (1..).zip(changes) {
            node.observe(&version.to_string(), *is_labelled, *has_record, start + *at * SECOND);
        }
        node
    }

    #[test]
    fn values_before_a_new_label_are_the_machines() {
        let node = seen(&[(0, false, false), (40, true, false)]);
        assert_eq!(node.unrecorded("2"), Unrecorded::Machine);
        assert_eq!(node.unrecorded("3"), Unrecorded::NotSeen, "another client has written the node since");
        let node = seen(&[(0, false, false), (40, true, false), (41, true, false)]);
        assert_eq!(node.unrecorded("3"), Unrecorded::Machine, "a write of the status follows");
    }

    #[test]
    fn values_are_unknown_after_a_record_or_a_start() {
        for changes in [
            &[(0, true, false)][..],
            &[(0, false, false), (20, true, false)],
            &[(0, false, true), (40, true, false)],
            &[(0, false, false), (40, true, false), (41, true, true), (42, true, false)],
            &[(0, false, false), (40, true, true), (41, false, true), (42, false, false), (50, true, false)],
        ] {
            let version = changes.len().to_string();
            assert_eq!(seen(changes).unrecorded(&version), Unrecorded::Unknown, "{changes:?}");
        }
    }

    #[test]
    fn only_nodes_with_label_or_record_become_due() {
        for (is_labelled, has_record) in [(false, false), (true, false), (false, true), (true, true)] {
            let is_due = seen(&[(0, is_labelled, has_record)]).due().is_some();
            assert_eq!(is_due, is_labelled || has_record);
        }
    }

    #[test]
    fn interval_of_writes_doubles_up_to_the_kubelets() {
        let start = Instant::now();
        let (mut node, mut now, mut intervals) = (TrackedNode::new(start), start, Vec::new());
        for _ in 0..7 {
            node.observe("1", true, true, now);
            let due = node.due().unwrap();
            intervals.push((due - now).as_millis());
            now = due;
            node.set_written(now);
            assert_eq!(node.due(), None);
        }
        assert_eq!(intervals, [0, 500, 1000, 2000, 4000, 8000, 10000]);
        now += QUIET_PERIOD + SECOND;
        node.observe("1", true, true, now);
        assert_eq!(node.due(), Some(now));
        node.set_written(now);
        node.observe("1", true, true, now);
        assert_eq!(node.due(), Some(now + MIN_WRITE_INTERVAL));
    }

    #[test]
    fn repeated_warnings_are_reported_once() {
        let mut node = TrackedNode::new(Instant::now());
        assert!(node.is_new_warning(Some("a")));
        assert!(!node.is_new_warning(Some("a")));
        assert!(!node.is_new_warning(None));
        assert!(node.is_new_warning(Some("a")));
    }
}
