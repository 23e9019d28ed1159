//! Single decisions, and the safety invariant: replicas that act in any order, with lost Secrets and a running clock,
//! never serve a set that is not trusted.

use proptest::{collection::vec, prelude::*};

use super::*;

const SETTLED: SetState =
    SetState { is_valid: true, renewal_due: false, trust: Trust::Propagated, is_served: true };

fn state(current: SetState, next: Option<SetState>) -> State {
    State {
        stored: Some(Stored { current: Some(current), next }),
        served: Served::Valid,
        must_publish: false,
    }
}

#[test]
fn is_idle_while_current_set_is_valid() {
    assert_eq!(next_step(&state(SETTLED, None)), Step::Idle);
}

#[test]
fn restores_lost_secret_from_served_set() {
    let lost = State { stored: None, served: Served::Valid, must_publish: false };
    assert_eq!(next_step(&lost), Step::Restore);
    assert_eq!(next_step(&State { served: Served::Nothing, ..lost }), Step::Create);
    assert_eq!(next_step(&State { served: Served::Invalid, ..lost }), Step::Create);
}

#[test]
fn serves_new_leaf_only_after_all_entries_trust_its_ca() {
    let new = SetState { is_served: false, ..SETTLED };
    for (trust, must_publish, step) in [
        (Trust::Missing, true, Step::Publish),
        (Trust::Propagating, false, Step::AwaitPropagation),
        (Trust::Propagated, false, Step::Serve),
    ] {
        let state = State { must_publish, ..state(SetState { trust, ..new }, None) };
        assert_eq!(next_step(&state), step, "{trust:?}");
    }
}

#[test]
fn togettoyou_makes_a_new_certificate_at_each_start() {
    // togettoyou/sidecar-injector `main.go`. A start of etcd-guard serves the stored set and writes nothing.
    let stored = Some(Stored { current: Some(SetState { is_served: false, ..SETTLED }), next: None });
    let start = State { stored, served: Served::Nothing, must_publish: false };
    assert_eq!(next_step(&start), Step::Serve);
    assert_eq!(next_step(&state(SETTLED, None)), Step::Idle);
}

#[test]
fn renews_due_or_invalid_set_and_never_serves_invalid_one() {
    assert_eq!(next_step(&state(SetState { renewal_due: true, ..SETTLED }, None)), Step::Renew);
    let invalid = SetState { is_valid: false, is_served: false, ..SETTLED };
    assert_eq!(next_step(&state(invalid, None)), Step::Renew);
    assert_eq!(next_step(&state(SETTLED, Some(invalid))), Step::Renew);
}

#[test]
fn first_set_becomes_current_after_its_ca_is_trusted() {
    let first = SetState { is_served: false, ..SETTLED };
    for (trust, must_publish, step) in [
        (Trust::Missing, true, Step::Publish),
        (Trust::Propagating, false, Step::AwaitPropagation),
        (Trust::Propagated, false, Step::Promote),
    ] {
        let stored = Some(Stored { current: None, next: Some(SetState { trust, ..first }) });
        assert_eq!(next_step(&State { stored, served: Served::Nothing, must_publish }), step, "{trust:?}");
    }
    let nothing = Some(Stored { current: None, next: None });
    assert_eq!(
        next_step(&State { stored: nothing, served: Served::Nothing, must_publish: false }),
        Step::Renew
    );
}

/// The lifetime of a set. A set is identified by its index.
const LIFETIME: u32 = 30;

/// The time until all API servers have observed a trusted CA.
const PROPAGATION_TIME: u32 = 2;

/// The cluster.
#[derive(Clone, Debug, Default)]
struct Cluster {
    now: u32,
    /// The expiry of each set.
    expiries: Vec<u32>,
    secret: Option<(Option<usize>, Option<usize>)>,
    secret_version: u32,
    bundle: Vec<usize>,
    bundle_version: u32,
}

#[derive(Clone, Debug, Default)]
struct Replica {
    serves: Option<usize>,
    /// The time since which the replica has observed each set as trusted without interruption.
    trusted_since: Vec<(usize, u32)>,
    /// The observed state on which the replica acts later, so that races occur.
    observed: Option<Cluster>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Observe(usize),
    Act(usize),
    Restart(usize),
    LoseSecret,
    AdvanceTime,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..3_usize).prop_map(Event::Observe),
        8 => (0..3_usize).prop_map(Event::Act),
        1 => (0..3_usize).prop_map(Event::Restart),
        1 => Just(Event::LoseSecret),
        4 => Just(Event::AdvanceTime),
    ]
}

impl Replica {
    fn observe(&mut self, cluster: &Cluster) {
        self.trusted_since.retain(|(set, _)| cluster.bundle.contains(set));
        for set in &cluster.bundle {
            if !self.trusted_since.iter().any(|(known, _)| known == set) {
                self.trusted_since.push((*set, cluster.now));
            }
        }
        self.observed = Some(cluster.clone());
    }

    fn set_state(&self, observed: &Cluster, set: usize) -> SetState {
        let since = self.trusted_since.iter().find(|(known, _)| *known == set);
        SetState {
            is_valid: observed.expiries[set] >= observed.now,
            renewal_due: observed.expiries[set] < observed.now + LIFETIME / 3,
            trust: match since {
                None => Trust::Missing,
                Some((_, since)) if observed.now - since < PROPAGATION_TIME => Trust::Propagating,
                Some(_) => Trust::Propagated,
            },
            is_served: self.serves == Some(set),
        }
    }

    fn act(&mut self, cluster: &mut Cluster) {
        let Some(observed) = self.observed.take() else { return };
        let stored = observed.secret.map(|(current, next)| Stored {
            current: current.map(|current| self.set_state(&observed, current)),
            next: next.map(|next| self.set_state(&observed, next)),
        });
        let required: Vec<usize> =
            observed.secret.iter().flat_map(|(current, next)| [*current, *next]).flatten().collect();
        let is_expired = |set: &usize| observed.expiries[*set] < observed.now;
        let state = State {
            stored,
            served: match self.serves {
                None => Served::Nothing,
                Some(set) if is_expired(&set) => Served::Invalid,
                Some(_) => Served::Valid,
            },
            must_publish: required.iter().any(|set| !is_expired(set) && !observed.bundle.contains(set))
                || observed.bundle.iter().any(is_expired),
        };
        let step = next_step(&state);
        let current = observed.secret.and_then(|(current, _)| current);
        let new_secret = match step {
            Step::Create => Some((None, Some(cluster.generate_set()))),
            Step::Restore => Some((self.serves, None)),
            Step::Promote => Some((observed.secret.unwrap().1, None)),
            Step::Renew => Some((current, Some(cluster.generate_set()))),
            Step::Serve => {
                self.serves = current;
                None
            }
            Step::Publish if observed.bundle_version == cluster.bundle_version => {
                cluster.bundle.retain(|set| !is_expired(set));
                let missing =
                    required.into_iter().filter(|set| !is_expired(set) && !observed.bundle.contains(set));
                cluster.bundle.extend(missing);
                cluster.bundle_version += 1;
                None
            }
            Step::Publish | Step::AwaitPropagation | Step::Idle => None,
        };
        if new_secret.is_some() && observed.secret_version == cluster.secret_version {
            cluster.secret = new_secret;
            cluster.secret_version += 1;
        }
    }
}

impl Cluster {
    fn generate_set(&mut self) -> usize {
        self.expiries.push(self.now + LIFETIME);
        self.expiries.len() - 1
    }

    fn apply(&mut self, event: Event, replicas: &mut [Replica]) {
        match event {
            Event::Observe(replica) => replicas[replica].observe(self),
            Event::Act(replica) => replicas[replica].act(self),
            Event::Restart(replica) => replicas[replica] = Replica::default(),
            Event::LoseSecret => {
                self.secret = None;
                self.secret_version += 1;
            }
            Event::AdvanceTime => self.now += 1,
        }
    }

    /// Asserts that an API server would trust every replica whose leaf has not expired, and every server that mounts the
    /// Secret: it serves the current set at once, or any earlier one.
    fn assert_trusted(&self, replicas: &[Replica]) {
        let mounted = self.secret.and_then(|(current, _)| current);
        for served in replicas.iter().filter_map(|replica| replica.serves).chain(mounted) {
            let is_expired = self.expiries[served] < self.now;
            assert!(
                is_expired || self.bundle.contains(&served),
                "{served} is served and not trusted: {self:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_replica_serves_untrusted_set(events in vec(event(), 0..400)) {
        let mut cluster = Cluster::default();
        let mut replicas = vec![Replica::default(); 3];
        for event in events {
            cluster.apply(event, &mut replicas);
            cluster.assert_trusted(&replicas);
        }
    }

    #[test]
    fn replicas_converge_to_one_valid_set(events in vec(event(), 0..200)) {
        let mut cluster = Cluster::default();
        let mut replicas = vec![Replica::default(); 3];
        for event in events {
            cluster.apply(event, &mut replicas);
        }
        for _ in 0..LIFETIME {
            for _ in 0..4 {
                for replica in &mut replicas {
                    replica.observe(&cluster);
                    replica.act(&mut cluster);
                    cluster.assert_trusted(std::slice::from_ref(replica));
                }
            }
            cluster.now += 1;
        }
        let current = cluster.secret.and_then(|(current, _)| current);
        prop_assert!(replicas.iter().all(|replica| replica.serves == current), "{cluster:?} {replicas:?}");
        prop_assert!(current.is_some_and(|set| cluster.expiries[set] >= cluster.now));
    }
}
